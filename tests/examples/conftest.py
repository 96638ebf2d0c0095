"""Servers of models are forked; processes that train show what they import."""

from tests import zygote

forks = zygote.forks_of("examples.serving.load_test")
