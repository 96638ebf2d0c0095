/* TensorProto and TensorShapeProto, and the tensors of TensorFlow's C API. */

#ifndef TENSORS_H
#define TENSORS_H

#include "tensorflow/c/tf_tensor.h"
#include "wire.h"

/* Of a request, and of its tensors: one value may stand for as many as a shape says. */
#define MOST_BYTES ((size_t)1 << 28)
#define MOST_DIMENSIONS 32

/* A size of -1 is unknown in a signature, and so is a rank of -1. */
typedef struct {
    int rank;
    int64_t sizes[MOST_DIMENSIONS];
} Shape;

/* A TensorProto whose values have not been read. */
typedef struct {
    TF_DataType dtype;
    Shape shape;
    Bytes message;
} TensorView;

/* These return NULL, or why a message cannot be read. */
const char* shape_read(Bytes message, Shape* shape);
const char* tensor_view(Bytes message, TensorView* view);

/* Makes a tensor, which takes its bytes from `*budget`. Its shape must be one with `tensor_fits`. */
const char* tensor_read(const TensorView* view, size_t* budget, TF_Tensor** tensor);

/* Whether a tensor of the shape has at most MOST_BYTES. */
bool tensor_fits(TF_DataType dtype, const Shape* shape);

/* One of zeros, or of empty strings; NULL without memory. */
TF_Tensor* tensor_zeros(TF_DataType dtype, const Shape* shape);

/* Writes a tensor as the field `number`; false if it has a dtype without a name. */
bool tensor_write(Buffer* buffer, uint64_t number, const TF_Tensor* tensor);

/* TensorFlow's name of a dtype, NULL if it cannot be in a message. */
const char* dtype_name(TF_DataType dtype);

/* Texts like those of Python: [2, 3] for values, (None, 3) for what a signature takes. */
typedef struct {
    char text[128];
} ShapeText;
ShapeText shape_of_values(const Shape* shape);
ShapeText shape_of_signature(const Shape* shape);

#endif
