"""Models are compared in forked processes."""

from tests import zygote

forks = zygote.forks_of("fusion.saved_model.verify.processes", "modelzoo.demo")
