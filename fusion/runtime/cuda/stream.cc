// The CUDA stream of an op's context, by TensorFlow's own headers: see stream.py.

#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"

extern "C" long long fusion_stream(long long context) {
  auto* op_context = reinterpret_cast<tensorflow::OpKernelContext*>(context);
  auto* stream = op_context->op_device_context()->stream();
  return reinterpret_cast<long long>(stream->platform_specific_handle().stream);
}
