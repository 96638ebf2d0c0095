/* A signature of a SavedModel: SignatureDef in the MetaGraphDef that TensorFlow gives. */

#ifndef SIGNATURE_H
#define SIGNATURE_H

#include "error.h"
#include "tensorflow/c/c_api.h"
#include "tensors.h"

/* An input or output. */
typedef struct {
    char* name;
    TF_DataType dtype;
    Shape shape;
    TF_Output tensor;
} Spec;

/* Sorted by name. */
typedef struct {
    Spec* items;
    size_t count;
} Specs;

typedef struct {
    char* name;
    Specs inputs, outputs;
} Signature;

/* Finds the signature `name`; it is freed in any case. */
bool signature_read(Signature* signature, const char* name, const TF_Buffer* meta_graph,
                    TF_Graph* graph, Error* error);
void signature_free(Signature* signature);

/* The index of a name, -1 if there is none. */
int specs_find(const Specs* specs, Bytes name);

/* The names with commas between; free it. NULL without memory. */
char* specs_names(const Specs* specs);

/* Whether a tensor of a request is one that the input takes. */
bool spec_check(const Spec* input, const TensorView* view, Error* error);

#endif
