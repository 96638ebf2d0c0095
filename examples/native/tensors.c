#include "tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/tf_tstring.h"

static const char DAMAGED[] = "the message is damaged";
static const char TOO_LARGE[] = "the inputs are of more than 256 MiB";
static const char NO_MEMORY[] = "out of memory";

/* What values look like in a TensorProto: in `tensor_content`, or in the field of their dtype. */
typedef struct {
    TF_DataType dtype;
    const char* name;
    uint64_t field;
    WireType type;
    unsigned part_size; /* bytes of a number in memory */
    unsigned parts;     /* numbers in a value */
} DType;

static const DType DTYPES[] = {
    {TF_FLOAT, "float32", 5, WIRE_FIXED32, 4, 1},
    {TF_DOUBLE, "float64", 6, WIRE_FIXED64, 8, 1},
    {TF_INT32, "int32", 7, WIRE_VARINT, 4, 1},
    {TF_UINT8, "uint8", 7, WIRE_VARINT, 1, 1},
    {TF_INT16, "int16", 7, WIRE_VARINT, 2, 1},
    {TF_INT8, "int8", 7, WIRE_VARINT, 1, 1},
    {TF_STRING, "string", 8, WIRE_BYTES, sizeof(TF_TString), 1},
    {TF_COMPLEX64, "complex64", 9, WIRE_FIXED32, 4, 2},
    {TF_INT64, "int64", 10, WIRE_VARINT, 8, 1},
    {TF_BOOL, "bool", 11, WIRE_VARINT, 1, 1},
    {TF_BFLOAT16, "bfloat16", 13, WIRE_VARINT, 2, 1},
    {TF_UINT16, "uint16", 7, WIRE_VARINT, 2, 1},
    {TF_COMPLEX128, "complex128", 12, WIRE_FIXED64, 8, 2},
    {TF_HALF, "float16", 13, WIRE_VARINT, 2, 1},
    {TF_UINT32, "uint32", 16, WIRE_VARINT, 4, 1},
    {TF_UINT64, "uint64", 17, WIRE_VARINT, 8, 1},
};

enum { TENSOR_DTYPE = 1, TENSOR_SHAPE = 2, TENSOR_CONTENT = 4 };
enum { SHAPE_DIM = 2, SHAPE_UNKNOWN_RANK = 3, DIM_SIZE = 1 };

static const DType* find_dtype(TF_DataType dtype) {
    for (size_t i = 0; i < sizeof DTYPES / sizeof *DTYPES; ++i) {
        if (DTYPES[i].dtype == dtype) return &DTYPES[i];
    }
    return NULL;
}

const char* dtype_name(TF_DataType dtype) {
    const DType* found = find_dtype(dtype);
    return found == NULL ? NULL : found->name;
}

/* --- Shapes --- */

static const char* read_dimension(Bytes message, int64_t* size) {
    *size = 0;
    Field field;
    WireStatus status;
    while ((status = wire_next(&message, &field)) == WIRE_FIELD) {
        if (field_is(&field, DIM_SIZE, WIRE_VARINT)) *size = (int64_t)field.value;
    }
    return status == WIRE_END ? NULL : DAMAGED;
}

const char* shape_read(Bytes message, Shape* shape) {
    shape->rank = 0;
    bool has_rank = true;
    Field field;
    WireStatus status;
    while ((status = wire_next(&message, &field)) == WIRE_FIELD) {
        if (field_is(&field, SHAPE_DIM, WIRE_BYTES)) {
            if (shape->rank == MOST_DIMENSIONS) return "it has more than 32 dimensions";
            const char* reason = read_dimension(field.bytes, &shape->sizes[shape->rank++]);
            if (reason != NULL) return reason;
        } else if (field_is(&field, SHAPE_UNKNOWN_RANK, WIRE_VARINT)) {
            has_rank = field.value == 0;
        }
    }
    if (!has_rank) shape->rank = -1;
    return status == WIRE_END ? NULL : DAMAGED;
}

static ShapeText text_of(const Shape* shape, const char* brackets, bool is_tuple) {
    ShapeText result;
    size_t at = 0, size = sizeof result.text - 8; /* a bracket and dots fit behind it */
    result.text[at++] = brackets[0];
    for (int i = 0; i < shape->rank && at < size; ++i) {
        if (i > 0) at += (size_t)snprintf(result.text + at, size - at, ", ");
        if (at >= size) break;
        char number[24] = "None";
        if (!is_tuple || shape->sizes[i] >= 0) {
            snprintf(number, sizeof number, "%lld", (long long)shape->sizes[i]);
        }
        at += (size_t)snprintf(result.text + at, size - at, "%s", number);
    }
    const char* comma = is_tuple && shape->rank == 1 ? "," : "";
    if (at >= size) at = size - 1, comma = "...";
    snprintf(result.text + at, sizeof result.text - at, "%s%c", comma, brackets[1]);
    return result;
}

ShapeText shape_of_values(const Shape* shape) { return text_of(shape, "[]", false); }

ShapeText shape_of_signature(const Shape* shape) {
    if (shape->rank < 0) return (ShapeText){"<unknown>"};
    return text_of(shape, "()", true);
}

bool tensor_fits(TF_DataType dtype, const Shape* shape) {
    const DType* known = find_dtype(dtype);
    size_t most = MOST_BYTES / (known == NULL ? 1 : known->part_size * known->parts);
    for (int i = 0; i < shape->rank; ++i) {
        /* A dimension of none counts as one: TensorFlow ends a process where the others overflow. */
        int64_t size = shape->sizes[i] == 0 ? 1 : shape->sizes[i];
        if (size < 0 || (uint64_t)size > most) return false;
        most /= (size_t)size;
    }
    return shape->rank >= 0;
}

static size_t count_of(const Shape* shape) {
    size_t count = 1;
    for (int i = 0; i < shape->rank; ++i) count *= (size_t)shape->sizes[i];
    return count;
}

/* --- Values --- */

const char* tensor_view(Bytes message, TensorView* view) {
    *view = (TensorView){.message = message};
    Field field;
    WireStatus status;
    while ((status = wire_next(&message, &field)) == WIRE_FIELD) {
        if (field_is(&field, TENSOR_DTYPE, WIRE_VARINT)) {
            view->dtype = (TF_DataType)(field.value <= 1000 ? field.value : 1000);
        } else if (field_is(&field, TENSOR_SHAPE, WIRE_BYTES)) {
            const char* reason = shape_read(field.bytes, &view->shape);
            if (reason != NULL) return reason;
            if (view->shape.rank < 0) return "its shape has no rank";
        }
    }
    if (status != WIRE_END) return DAMAGED;
    return find_dtype(view->dtype) == NULL ? "its dtype is unknown" : NULL;
}

static void free_strings(void* data, size_t size, void* unused) {
    (void)unused;
    TF_TString* strings = data;
    for (size_t i = 0; i < size / sizeof *strings; ++i) TF_StringDealloc(&strings[i]);
    free(data);
}

/* Strings are freed with the last reference to the tensor, which the model may hold. */
static TF_Tensor* new_tensor(const DType* dtype, const Shape* shape) {
    size_t count = count_of(shape), size = count * dtype->part_size * dtype->parts;
    if (dtype->dtype != TF_STRING) {
        return TF_AllocateTensor(dtype->dtype, shape->sizes, shape->rank, size);
    }
    TF_TString* strings = malloc(size > 0 ? size : 1);
    if (strings == NULL) return NULL;
    for (size_t i = 0; i < count; ++i) TF_StringInit(&strings[i]);
    return TF_NewTensor(TF_STRING, shape->sizes, shape->rank, strings, size, free_strings, NULL);
}

TF_Tensor* tensor_zeros(TF_DataType dtype, const Shape* shape) {
    const DType* known = find_dtype(dtype);
    TF_Tensor* tensor = new_tensor(known, shape);
    if (tensor != NULL && dtype != TF_STRING && TF_TensorByteSize(tensor) > 0) {
        memset(TF_TensorData(tensor), 0, TF_TensorByteSize(tensor));
    }
    return tensor;
}

/* The values that have been read of a tensor. */
typedef struct {
    const DType* dtype;
    char* data;
    size_t count; /* of numbers */
    size_t most;
    size_t* budget;
} Values;

static const char* add_number(Values* values, uint64_t number) {
    if (values->count == values->most) return "it has more values than its shape says";
    if (values->dtype->dtype == TF_BOOL) number = number != 0;
    size_t size = values->dtype->part_size;
    memcpy(values->data + values->count++ * size, &number, size); /* little-endian, as x86-64 is */
    return NULL;
}

static const char* add_string(Values* values, Bytes bytes) {
    if (values->count == values->most) return "it has more values than its shape says";
    if (bytes.size > *values->budget) return TOO_LARGE;
    *values->budget -= bytes.size;
    TF_StringCopy((TF_TString*)values->data + values->count++, bytes.data, bytes.size);
    return NULL;
}

static const char* add_packed(Values* values, Bytes packed) {
    while (packed.size > 0) {
        uint64_t number;
        if (!wire_number(&packed, values->dtype->type, &number)) return DAMAGED;
        const char* reason = add_number(values, number);
        if (reason != NULL) return reason;
    }
    return NULL;
}

static const char* set_content(Values* values, Bytes content) {
    if (values->dtype->type == WIRE_BYTES) return "strings must be in string_val";
    if (content.size != values->most * values->dtype->part_size) {
        return "tensor_content has another size than its shape says";
    }
    memcpy(values->data, content.data, content.size);
    if (values->dtype->dtype == TF_BOOL) {
        for (size_t i = 0; i < content.size; ++i) values->data[i] = values->data[i] != 0;
    }
    values->count = values->most;
    return NULL;
}

static const char* add_field(Values* values, const Field* field) {
    const DType* dtype = values->dtype;
    if (field->number != dtype->field) return NULL;
    if (dtype->type == WIRE_BYTES) {
        return field->type == WIRE_BYTES ? add_string(values, field->bytes) : NULL;
    }
    if (field->type == WIRE_BYTES) return add_packed(values, field->bytes);
    return field->type == dtype->type ? add_number(values, field->value) : NULL;
}

/* The last value stands for those that are missing, and zero for all. */
static const char* repeat_last(Values* values) {
    const DType* dtype = values->dtype;
    if (values->count % dtype->parts != 0) return "it has half a complex value";
    size_t size = dtype->part_size * dtype->parts;
    size_t count = values->count / dtype->parts, most = values->most / dtype->parts;
    if (dtype->type == WIRE_BYTES) {
        if (count == 0) return NULL;
        const TF_TString* last = (const TF_TString*)values->data + count - 1;
        Bytes bytes = {TF_StringGetDataPointer(last), TF_StringGetSize(last)};
        const char* reason = NULL;
        while (reason == NULL && values->count < most) reason = add_string(values, bytes);
        return reason;
    }
    if (count == 0 && most > 0) memset(values->data, 0, size), count = 1;
    for (; count < most; ++count) {
        memcpy(values->data + count * size, values->data + (count - 1) * size, size);
    }
    return NULL;
}

static const char* read_values(Bytes message, Values* values) {
    Bytes content = {0};
    Field field;
    for (Bytes rest = message; wire_next(&rest, &field) == WIRE_FIELD;) {
        if (field_is(&field, TENSOR_CONTENT, WIRE_BYTES)) content = field.bytes;
    }
    if (content.size > 0) return set_content(values, content);
    while (wire_next(&message, &field) == WIRE_FIELD) {
        const char* reason = add_field(values, &field);
        if (reason != NULL) return reason;
    }
    return repeat_last(values);
}

const char* tensor_read(const TensorView* view, size_t* budget, TF_Tensor** tensor) {
    const DType* dtype = find_dtype(view->dtype);
    size_t count = count_of(&view->shape) * dtype->parts;
    if (count * dtype->part_size > *budget) return TOO_LARGE;
    *budget -= count * dtype->part_size;
    *tensor = new_tensor(dtype, &view->shape);
    if (*tensor == NULL) return NO_MEMORY;
    Values values = {.dtype = dtype, .data = TF_TensorData(*tensor), .most = count, .budget = budget};
    const char* reason = read_values(view->message, &values);
    if (reason != NULL) {
        TF_DeleteTensor(*tensor);
        *tensor = NULL;
    }
    return reason;
}

bool tensor_write(Buffer* buffer, uint64_t number, const TF_Tensor* tensor) {
    const DType* dtype = find_dtype(TF_TensorType(tensor));
    if (dtype == NULL) return false;
    size_t begin = wire_begin(buffer, number);
    wire_put_number(buffer, TENSOR_DTYPE, dtype->dtype);
    size_t shape = wire_begin(buffer, TENSOR_SHAPE);
    for (int i = 0; i < TF_NumDims(tensor); ++i) {
        size_t dimension = wire_begin(buffer, SHAPE_DIM);
        wire_put_number(buffer, DIM_SIZE, (uint64_t)TF_Dim(tensor, i));
        wire_end(buffer, dimension);
    }
    wire_end(buffer, shape);
    if (dtype->type == WIRE_BYTES) {
        const TF_TString* strings = TF_TensorData(tensor);
        for (int64_t i = 0; i < TF_TensorElementCount(tensor); ++i) {
            Bytes bytes = {TF_StringGetDataPointer(&strings[i]), TF_StringGetSize(&strings[i])};
            wire_put_bytes(buffer, dtype->field, bytes);
        }
    } else {
        Bytes content = {TF_TensorData(tensor), TF_TensorByteSize(tensor)};
        wire_put_bytes(buffer, TENSOR_CONTENT, content);
    }
    wire_end(buffer, begin);
    return true;
}
