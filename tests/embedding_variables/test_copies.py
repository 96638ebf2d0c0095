"""A second copy of the package in a process, as where `sys.modules` was emptied.

What the first copy has replaced in TensorFlow and Keras stays, and serves both.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType

import keras
import pytest

from fusion import EmbeddingVariable
from fusion.tables import initial_rows, registry, saved_models


def copy_of(module: ModuleType) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"copy of {module.__name__}", module.__file__)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def test_it_knows_the_tables_of_the_first_one():
    variable = EmbeddingVariable("table", 2, capacity=50)
    assert copy_of(registry).embedding_variable_of(variable.table) is variable


def test_it_knows_the_shards_of_the_first_one():
    class Shard:
        """What is known of one."""

    variable, shard = EmbeddingVariable("table", 2, capacity=50).table, Shard()
    registry.register_shard(variable, shard)
    assert copy_of(registry).shard_of(variable) is shard


def test_its_optimizers_make_slots_that_take_memory_with_their_rows():
    variable = EmbeddingVariable("table", 2)
    zeros = copy_of(initial_rows).ZerosOnDemand()
    optimizer = keras.optimizers.Adam()
    slot = optimizer.add_variable_from_reference(variable.table, "slot", initializer=zeros)
    assert slot.shape == variable.table.shape


@pytest.mark.parametrize("is_of_model", [True, False])
def test_it_knows_what_the_first_one_saves(is_of_model):
    token = saved_models._IS_OF_MODEL.set(is_of_model)
    try:
        assert copy_of(saved_models).is_of_model() == is_of_model
    finally:
        saved_models._IS_OF_MODEL.reset(token)
