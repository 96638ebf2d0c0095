"""Servers of models are forked."""

from tests import zygote

forks = zygote.forks_of("examples.serving.load_test")
