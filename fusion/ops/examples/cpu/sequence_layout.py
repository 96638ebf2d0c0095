"""What the kernel that parses SequenceExamples knows of a node.

This module needs no Numba.
"""

from __future__ import annotations

from fusion.ops.examples.cpu.example_layout import ExampleState, FeatureGroup, GroupConstants
from fusion.runtime.layout import Layout, record


class SequenceState(ExampleState):
    """The state of a kernel; features follow, the context's first, and what they point to."""

    context: FeatureGroup = record(FeatureGroup)
    lists: FeatureGroup = record(FeatureGroup)


class SequenceConstants(Layout):
    """What the builder of states needs to know."""

    context: GroupConstants = record(GroupConstants)
    lists: GroupConstants = record(GroupConstants)
