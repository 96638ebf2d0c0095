"""The one door to names of TensorFlow and Keras that are not public.

`from fusion.runtime.tensorflow.private import ops` gives `tensorflow.python.framework.ops`. A test
compares the table with the installed versions.
"""

from __future__ import annotations

import pkgutil
from typing import Any

#: By the module or package where they are; the same in all versions that fusion runs with.
NAMES = {
    "keras.src.backend.common.symbolic_scope": "in_symbolic_scope",
    "tensorflow.python": "pywrap_tfe",
    "tensorflow.python.autograph.core.ag_ctx": "ControlStatusCtx Status",
    "tensorflow.python.checkpoint.tensor_callable": "Callable",
    "tensorflow.python.client": "pywrap_tf_session session",
    "tensorflow.python.client.session": "BaseSession",
    "tensorflow.python.distribute": "device_util",
    "tensorflow.python.distribute.distribute_utils": "create_mirrored_variable",
    "tensorflow.python.distribute.mirrored_strategy": "MirroredExtended",
    "tensorflow.python.distribute.numpy_dataset": "SingleDevice",
    "tensorflow.python.distribute.sharded_variable": "ShardedVariable",
    "tensorflow.python.distribute.values": "MirroredVariable PerReplica",
    "tensorflow.python.distribute.values_util": "get_current_replica_id_as_int",
    "tensorflow.python.eager": "context execute record",
    "tensorflow.python.eager.polymorphic_function": "transform",
    "tensorflow.python.eager.polymorphic_function.atomic_function": "AtomicFunction",
    "tensorflow.python.eager.polymorphic_function.concrete_function": "ConcreteFunction",
    "tensorflow.python.eager.wrap_function": "WrappedFunction",
    "tensorflow.python.feature_column": "feature_column feature_column_v2 serialization",
    "tensorflow.python.feature_column.feature_column_v2_types": "FeatureColumn",
    "tensorflow.python.framework": (
        "_pywrap_python_op_gen device_spec dtypes errors kernels meta_graph op_def_library "
        "op_def_registry ops tensor_util versions"
    ),
    "tensorflow.python.framework.device_spec": "DeviceSpecV2",
    "tensorflow.python.framework.dtypes": "as_dtype",
    "tensorflow.python.framework.func_graph": "FuncGraph",
    "tensorflow.python.framework.function_def_to_graph": "function_def_to_graph",
    "tensorflow.python.framework.ops": "colocate_with EagerTensor",
    "tensorflow.python.grappler": "item tf_optimizer",
    "tensorflow.python.ops": (
        "control_flow_util custom_gradient gen_math_ops gen_resource_variable_ops "
        "gen_training_ops handle_data_util init_ops init_ops_v2"
    ),
    "tensorflow.python.ops.resource_variable_ops": (
        "BaseResourceVariable ResourceVariable variable_accessed variable_shape"
    ),
    "tensorflow.python.ops.variables": "PartitionedVariable",
    "tensorflow.python.saved_model": (
        "constants load load_v1_in_v2 nested_structure_coder save save_context"
    ),
    "tensorflow.python.saved_model.load": "_WrapperFunction",
    "tensorflow.python.saved_model.pywrap_saved_model": "fingerprinting",
    "tensorflow.python.trackable": "data_structures",
    "tensorflow.python.trackable.base": "Trackable",
    "tensorflow.python.training": "optimizer server_lib slot_creator",
    "tensorflow.python.training.saving": "saveable_object saveable_object_util",
    "tensorflow.python.util": "nest",
}

_MODULES = {name: module for module, names in NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """What a name of the table is in the installed version.

    Raises:
      AttributeError: the table does not have it, or the installed version.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = pkgutil.resolve_name(f"{_MODULES[name]}.{name}")
    return found
