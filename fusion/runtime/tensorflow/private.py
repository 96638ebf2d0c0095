"""The one door to names of TensorFlow and Keras that are not public.

`from fusion.runtime.tensorflow.private import ops` gives `tensorflow.python.framework.ops`. Tests
compare both tables with the sources of fusion and with the installed versions.
"""

from __future__ import annotations

import pkgutil
from typing import Any

#: By the module or package where they are; the same in all versions that fusion runs with.
NAMES = {
    "keras.src.backend.common": "global_state",
    "keras.src.backend.common.symbolic_scope": "in_symbolic_scope",
    "keras.src.legacy.saving": "legacy_h5_format",
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
    "tf_keras.src.mixed_precision": "loss_scale_optimizer",
    "tf_keras.src.optimizers": "utils",
    "tf_keras.src.saving.legacy": "hdf5_format",
}

#: Private attributes that fusion reads, calls, replaces or overrides, by class or module. They are
#: the same in all versions that fusion runs with, or there are others for those that lack them.
ATTRIBUTES = {
    # Graphs: functions are rebuilt, nodes get attrs and control inputs.
    "tensorflow.Graph": "_add_function_recursive _get_function _graph_key",
    "tensorflow.Operation": "_add_control_input _gradient_function _set_attr",
    "tensorflow.python.eager.polymorphic_function.concrete_function.ConcreteFunction": (
        "_arg_keywords _call_flat _captured_inputs _function_type _get_gradient_function "
        "_num_positional_args"
    ),
    "tensorflow.python.eager.wrap_function.WrappedFunction": "_signature _variable_holder",
    "tensorflow.data.Dataset": "_inputs _variant_tensor",
    # How a process runs graphs: its Sessions, and its task in a cluster.
    "tensorflow.python.client.session.BaseSession": "_config _make_callable_from_options",
    "tensorflow.python.eager.context.Context": "_collective_ops_server_def _server_def",
    "tensorflow.python.training.server_lib.Server": "_server",
    # Variables whose rows belong to keys, and those that replicas share.
    "tensorflow.Module": "_TF_MODULE_IGNORED_PROPERTIES",
    "tensorflow.python.ops.resource_variable_ops.BaseResourceVariable": (
        "_graph_element _handle _lazy_read _read_variable_op _shared_name"
    ),
    "tensorflow.python.distribute.values.MirroredVariable": (
        "_devices _distribute_strategy _get _get_cross_replica _get_replica _primary"
    ),
    "tensorflow.python.distribute.collective_all_reduce_strategy.CollectiveAllReduceExtended": (
        "_communication_options _id_in_cluster _num_workers"
    ),
    "tensorflow.python.distribute.parameter_server_strategy_v2.ParameterServerStrategyV2Extended": (
        "_variable_partitioner"
    ),
    # What checkpoints and SavedModels have of an object, and what is loaded.
    "tensorflow.python.trackable.base.Trackable": (
        "_copy_trackable_to_cpu _deserialization_dependencies _export_to_saved_model_graph "
        "_no_dependency _restore_from_tensors _serialize_to_tensors _trackable_children"
    ),
    "tensorflow.python.trackable.data_structures.List": (
        "_self_extra_variables _storage _track_value"
    ),
    "tensorflow.python.saved_model.save": "_build_meta_graph",
    "tensorflow.python.saved_model.load.Loader": (
        "_iter_all_nodes _load_checkpoint_save_and_restore_functions _proto _recreate_variable"
    ),
    "tensorflow.python.saved_model.load_v1_in_v2": "_EagerSavedModelLoader",
    # Feature columns.
    "tensorflow.python.feature_column.feature_column": "_CategoricalColumn _SharedEmbeddingColumn",
    "tensorflow.python.feature_column.feature_column._CategoricalColumn": (
        "_get_sparse_tensors _num_buckets _parse_example_spec _transform_feature"
    ),
    "tensorflow.python.feature_column.feature_column._SharedEmbeddingColumn": (
        "_get_dense_tensor_internal"
    ),
    "tensorflow.python.feature_column.feature_column_v2": (
        "_StateManagerImpl _normalize_feature_columns _sanitize_column_name_for_variable_scope "
        "_to_sparse_input_and_drop_ignore_values _verify_static_batch_size_equality"
    ),
    "tensorflow.python.feature_column.feature_column_v2.EmbeddingColumn": (
        "_get_dense_tensor_internal _get_dense_tensor_internal_helper "
        "_old_get_dense_tensor_internal"
    ),
    "tensorflow.python.feature_column.feature_column_v2.SharedEmbeddingColumn": (
        "_get_dense_tensor_internal"
    ),
    "tensorflow.python.feature_column.feature_column_v2.SharedEmbeddingColumnCreator": (
        "_ckpt_to_load_from _embedding_weights _initializer _name _num_buckets "
        "_tensor_name_in_ckpt _trainable"
    ),
    "tensorflow.python.feature_column.feature_column_v2.VocabularyListCategoricalColumn": (
        "_transform_input_tensor"
    ),
    "tensorflow.python.feature_column.feature_column_v2._StateManagerImpl": "_layer",
    "tensorflow.python.feature_column.feature_column_v2_types.FeatureColumn": "_is_v2_column",
    "tensorflow.python.feature_column.serialization": "_FEATURE_COLUMNS",
    "tensorflow.python.ops.lookup_ops.IdTableWithHashBuckets": "_table",
    # Optimizers: rows are updated, and slots follow them.
    "tensorflow.compat.v1.train.AdamOptimizer": (
        "_apply_sparse _beta1_t _beta2_t _epsilon_t _get_beta_accumulators _lr_t "
        "_resource_apply_sparse _use_locking"
    ),
    "keras.optimizers.Optimizer": (
        "_all_reduce_sum_gradients _apply_weight_decay _clip_gradients _get_variable_index "
        "_trainable_variables _use_weight_decay"
    ),
    "keras.optimizers.Adadelta": "_accumulated_delta_vars _accumulated_grads",
    "keras.optimizers.Adagrad": "_accumulators",
    "keras.optimizers.Adam": "_momentums _velocities _velocity_hats",
    "keras.optimizers.Ftrl": "_accumulators _linears",
    "tf_keras.optimizers.Optimizer": (
        "_clip_gradients _deduplicate_sparse_grad _index_dict _mesh _use_weight_decay _var_key"
    ),
    "tf_keras.optimizers.Adadelta": "_accumulated_delta_vars _accumulated_grads",
    "tf_keras.optimizers.Adagrad": "_accumulators",
    "tf_keras.optimizers.Adam": "_momentums _velocities _velocity_hats",
    "tf_keras.optimizers.Ftrl": "_accumulators _linears",
    "tf_keras.optimizers.legacy.Optimizer": "_aggregate_gradients",
    # Layers and their weights, in files, exports and TensorBoard.
    "keras.Variable": "_copy_trackable_to_cpu _export_to_saved_model_graph _value",
    "keras.layers.Layer": "_flatten_layers _non_trainable_variables _trainable_variables",
    "keras.layers.Embedding": "_embeddings",
    "keras.callbacks.TensorBoard": "_log_weights",
    "keras.export.ExportArchive": (
        "_all_variables _filter_and_track_resources _misc_assets _tf_trackable"
    ),
    "tf_keras.layers.Layer": (
        "_flatten_layers _flatten_modules _non_trainable_weights _trainable_weights"
    ),
    "tf_keras.callbacks.TensorBoard": "_log_weights",
    "tf_keras.export.ExportArchive": "_all_variables _filter_and_track_resources _misc_assets",
}

_MODULES = {name: module for module, names in NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """What a name of the table is in the installed version.

    Raises:
      AttributeError: the table does not have it, or the installed version.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = pkgutil.resolve_name(f"{_MODULES[name]}.{name}")
    return value
