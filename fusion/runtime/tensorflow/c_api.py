"""TensorFlow's C API for kernels, as functions for compiled code.

Pointers are 64-bit integers, `int` arguments are int32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import from_dtype

from fusion.runtime.tensorflow.dtypes import DTYPES

_i32, _i64 = types.int32, types.int64


def c_function(name: str, result: types.Type, *args: types.Type) -> types.ExternalFunction:
    """A C function of TensorFlow for use in compiled code."""
    return types.ExternalFunction(name, result(*args))


tf_num_inputs = c_function("TF_NumInputs", _i32, _i64)
tf_num_outputs = c_function("TF_NumOutputs", _i32, _i64)
tf_input_datatype = c_function("TF_InputDatatype", _i32, _i64, _i32)
tf_get_input = c_function("TF_GetInput", types.void, _i64, _i32, _i64, _i64)
tf_num_dims = c_function("TF_NumDims", _i32, _i64)
tf_dim = c_function("TF_Dim", _i64, _i64, _i32)
tf_new_tensor = c_function("TF_NewTensor", _i64, _i32, _i64, _i32, _i64, _i64, _i64, _i64)
tf_tensor_maybe_move = c_function("TF_TensorMaybeMove", _i64, _i64)
tf_tensor_data = c_function("TF_TensorData", _i64, _i64)
tf_delete_tensor = c_function("TF_DeleteTensor", types.void, _i64)
tf_new_status = c_function("TF_NewStatus", _i64)
tf_delete_status = c_function("TF_DeleteStatus", types.void, _i64)
tf_set_status = c_function("TF_SetStatus", types.void, _i64, _i32, _i64)
tf_get_code = c_function("TF_GetCode", _i32, _i64)
tf_message = c_function("TF_Message", _i64, _i64)
tf_new_op_definition_builder = c_function("TF_NewOpDefinitionBuilder", _i64, _i64)
tf_add_attr = c_function("TF_OpDefinitionBuilderAddAttr", types.void, _i64, _i64)
tf_add_input = c_function("TF_OpDefinitionBuilderAddInput", types.void, _i64, _i64)
tf_add_output = c_function("TF_OpDefinitionBuilderAddOutput", types.void, _i64, _i64)
tf_set_stateful = c_function("TF_OpDefinitionBuilderSetIsStateful", types.void, _i64, types.uint8)
tf_set_shape_function = c_function(
    "TF_OpDefinitionBuilderSetShapeInferenceFunction", types.void, _i64, _i64
)
tf_register_op = c_function("TF_RegisterOpDefinition", types.void, _i64, _i64)
tf_new_kernel_builder = c_function("TF_NewKernelBuilder", _i64, _i64, _i64, _i64, _i64, _i64)
tf_label_kernel = c_function("TF_KernelBuilder_Label", types.void, _i64, _i64)
tf_constrain_type = c_function(
    "TF_KernelBuilder_TypeConstraint", types.void, _i64, _i64, _i32, _i64
)
tf_keep_on_host = c_function("TF_KernelBuilder_HostMemory", types.void, _i64, _i64)
tf_register_kernel = c_function("TF_RegisterKernelBuilder", types.void, _i64, _i64, _i64)
tf_get_node_def = c_function("TF_OpKernelConstruction_GetNodeDef", _i64, _i64, _i64)
tf_delete_buffer = c_function("TF_DeleteBuffer", types.void, _i64)
tf_has_attr = c_function("TF_OpKernelConstruction_HasAttr", types.uint8, _i64, _i64, _i64)
tf_get_attr_int64 = c_function(
    "TF_OpKernelConstruction_GetAttrInt64", types.void, _i64, _i64, _i64, _i64
)
tf_get_attr_int64s = c_function(
    "TF_OpKernelConstruction_GetAttrInt64List", types.void, _i64, _i64, _i64, _i32, _i64
)
tf_get_attr_float = c_function(
    "TF_OpKernelConstruction_GetAttrFloat", types.void, _i64, _i64, _i64, _i64
)
tf_get_attr_floats = c_function(
    "TF_OpKernelConstruction_GetAttrFloatList", types.void, _i64, _i64, _i64, _i32, _i64
)
tf_get_attr_bool = c_function(
    "TF_OpKernelConstruction_GetAttrBool", types.void, _i64, _i64, _i64, _i64
)
tf_get_attr_bools = c_function(
    "TF_OpKernelConstruction_GetAttrBoolList", types.void, _i64, _i64, _i64, _i32, _i64
)
tf_get_attr_type = c_function(
    "TF_OpKernelConstruction_GetAttrType", types.void, _i64, _i64, _i64, _i64
)
tf_get_attr_types = c_function(
    "TF_OpKernelConstruction_GetAttrTypeList", types.void, _i64, _i64, _i64, _i32, _i64
)
tf_get_attr_string = c_function(
    "TF_OpKernelConstruction_GetAttrString", types.void, _i64, _i64, _i64, _i64, _i64
)
tf_get_attr_strings = c_function(
    "TF_OpKernelConstruction_GetAttrStringList",
    types.void,
    *(_i64, _i64, _i64, _i64, _i32, _i64, _i64, _i64),
)
tf_get_attr_size = c_function(
    "TF_OpKernelConstruction_GetAttrSize", types.void, _i64, _i64, _i64, _i64, _i64
)
tf_fail_construction = c_function("TF_OpKernelConstruction_Failure", types.void, _i64, _i64)
tf_failure = c_function("TF_OpKernelContext_Failure", types.void, _i64, _i64)
tf_allocate_output = c_function("TF_AllocateOutput", _i64, _i64, _i32, _i32, _i64, _i32, _i64, _i64)
tf_forward_or_allocate = c_function(
    "TF_ForwardInputOrAllocateOutput", _i64, _i64, _i64, _i32, _i32, _i64, _i32, _i64, _i64
)
tf_expected_output_datatype = c_function("TF_ExpectedOutputDataType", _i32, _i64, _i32)
tf_set_output = c_function("TF_SetOutput", types.void, _i64, _i32, _i64, _i64)
tf_allocate_temp = c_function("TF_AllocateTemp", _i64, _i64, _i32, _i64, _i32, _i64, _i64)


#: The dtypes that compiled code has itself, by Numba's type.
_DTYPES = {
    from_dtype(np.dtype(name)): dtype for name, dtype in DTYPES.items() if dtype.stored == name
}


def _dtype_constant(which: str) -> Any:
    def typing(typingctx: Any, dtype: Any) -> Any:
        value = getattr(_DTYPES[dtype.dtype], which)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return context.get_constant(_i64, value)

        return _i64(dtype), codegen

    return intrinsic(typing)


#: The `TF_DataType` and the bytes of one element of a NumPy dtype.
datatype = _dtype_constant("enum")
item_bytes = _dtype_constant("item_bytes")
