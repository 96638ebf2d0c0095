#include "signature.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { META_GRAPH_SIGNATURES = 5, ENTRY_KEY = 1, ENTRY_VALUE = 2 };
enum { SIGNATURE_INPUTS = 1, SIGNATURE_OUTPUTS = 2 };
enum { INFO_NAME = 1, INFO_DTYPE = 2, INFO_SHAPE = 3 };

static bool damaged(Error* error) {
    return error_set(error, 500, "the signatures of the model are damaged");
}

static int compare(const char* name, Bytes other) {
    size_t size = strlen(name), both = size < other.size ? size : other.size;
    int order = both == 0 ? 0 : memcmp(name, other.data, both);
    return order != 0 ? order : (size > other.size) - (size < other.size);
}

/* Sets the tensor "operation:index" of the graph. */
static bool find_tensor(Spec* spec, Bytes tensor, TF_Graph* graph, Error* error) {
    char* operation = strndup(tensor.data, tensor.size);
    if (operation == NULL) return error_of_memory(error);
    char* colon = strrchr(operation, ':');
    unsigned long index = 0;
    if (colon != NULL) {
        *colon = 0;
        index = strtoul(colon + 1, NULL, 10);
    }
    spec->tensor.oper = TF_GraphOperationByName(graph, operation);
    free(operation);
    if (spec->tensor.oper == NULL || index > INT_MAX ||
        (int)index >= TF_OperationNumOutputs(spec->tensor.oper)) {
        return error_set(error, 500, "%s: no tensor '%.*s' in the graph", spec->name,
                         (int)tensor.size, tensor.data);
    }
    spec->tensor.index = (int)index;
    return true;
}

static bool read_info(Spec* spec, Bytes info, TF_Graph* graph, Error* error) {
    Bytes tensor = {0};
    spec->shape.rank = -1;
    Field field;
    WireStatus status;
    while ((status = wire_next(&info, &field)) == WIRE_FIELD) {
        if (field_is(&field, INFO_NAME, WIRE_BYTES)) {
            tensor = field.bytes;
        } else if (field_is(&field, INFO_DTYPE, WIRE_VARINT)) {
            spec->dtype = (TF_DataType)(field.value <= 1000 ? field.value : 1000);
        } else if (field_is(&field, INFO_SHAPE, WIRE_BYTES)) {
            const char* reason = shape_read(field.bytes, &spec->shape);
            if (reason != NULL) return error_set(error, 500, "%s: %s", spec->name, reason);
        }
    }
    if (status != WIRE_END) return damaged(error);
    if (tensor.size == 0) {
        return error_set(error, 500,
                         "'%s' is a sparse tensor; only signatures of plain ones are served",
                         spec->name);
    }
    if (dtype_name(spec->dtype) == NULL) {
        return error_set(error, 500, "'%s' has a dtype that is not served (%d)", spec->name,
                         (int)spec->dtype);
    }
    return find_tensor(spec, tensor, graph, error);
}

/* Takes key and value from the entry of a map. */
static bool read_entry(Bytes entry, Bytes* key, Bytes* value) {
    *key = *value = (Bytes){"", 0};
    Field field;
    WireStatus status;
    while ((status = wire_next(&entry, &field)) == WIRE_FIELD) {
        if (field_is(&field, ENTRY_KEY, WIRE_BYTES)) *key = field.bytes;
        if (field_is(&field, ENTRY_VALUE, WIRE_BYTES)) *value = field.bytes;
    }
    return status == WIRE_END;
}

static bool add_spec(Specs* specs, Bytes entry, TF_Graph* graph, Error* error) {
    Bytes name, info;
    if (!read_entry(entry, &name, &info)) return damaged(error);
    Spec* items = realloc(specs->items, (specs->count + 1) * sizeof *items);
    if (items == NULL) return error_of_memory(error);
    specs->items = items;
    items[specs->count] = (Spec){.name = strndup(name.data, name.size)};
    if (items[specs->count].name == NULL) return error_of_memory(error);
    return read_info(&items[specs->count++], info, graph, error);
}

static int compare_specs(const void* one, const void* other) {
    return strcmp(((const Spec*)one)->name, ((const Spec*)other)->name);
}

static bool read_signature(Signature* signature, Bytes message, TF_Graph* graph, Error* error) {
    Field field;
    WireStatus status;
    while ((status = wire_next(&message, &field)) == WIRE_FIELD) {
        bool is_input = field_is(&field, SIGNATURE_INPUTS, WIRE_BYTES);
        if (!is_input && !field_is(&field, SIGNATURE_OUTPUTS, WIRE_BYTES)) continue;
        Specs* specs = is_input ? &signature->inputs : &signature->outputs;
        if (!add_spec(specs, field.bytes, graph, error)) return false;
    }
    if (status != WIRE_END) return damaged(error);
    for (int i = 0; i < 2; ++i) {
        Specs* specs = i == 0 ? &signature->inputs : &signature->outputs;
        if (specs->count > 0) qsort(specs->items, specs->count, sizeof(Spec), compare_specs);
    }
    return true;
}

bool signature_read(Signature* signature, const char* name, const TF_Buffer* meta_graph,
                    TF_Graph* graph, Error* error) {
    *signature = (Signature){.name = strdup(name)};
    if (signature->name == NULL) return error_of_memory(error);
    Buffer names = {0};
    Bytes found = {0}, rest = {meta_graph->data, meta_graph->length};
    Field field;
    WireStatus status;
    while ((status = wire_next(&rest, &field)) == WIRE_FIELD) {
        Bytes key, value;
        if (!field_is(&field, META_GRAPH_SIGNATURES, WIRE_BYTES)) continue;
        if (!read_entry(field.bytes, &key, &value)) break;
        if (compare(name, key) == 0) found = value;
        buffer_append(&names, ", ", names.size > 0 ? 2 : 0);
        buffer_append(&names, key.data, key.size);
    }
    bool is_read = false;
    if (status != WIRE_END) {
        damaged(error);
    } else if (found.data == NULL) {
        error_set(error, 404, "no signature '%s', there are %.*s", name, (int)names.size,
                  names.size > 0 ? names.data : "");
    } else {
        is_read = read_signature(signature, found, graph, error);
    }
    buffer_clear(&names, 0);
    return is_read;
}

static void free_specs(Specs* specs) {
    for (size_t i = 0; i < specs->count; ++i) free(specs->items[i].name);
    free(specs->items);
    *specs = (Specs){0};
}

void signature_free(Signature* signature) {
    free_specs(&signature->inputs);
    free_specs(&signature->outputs);
    free(signature->name);
    signature->name = NULL;
}

int specs_find(const Specs* specs, Bytes name) {
    size_t low = 0, high = specs->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare(specs->items[middle].name, name);
        if (order == 0) return (int)middle;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return -1;
}

char* specs_names(const Specs* specs) {
    Buffer names = {0};
    for (size_t i = 0; i < specs->count; ++i) {
        buffer_append(&names, ", ", i > 0 ? 2 : 0);
        buffer_append(&names, specs->items[i].name, strlen(specs->items[i].name));
    }
    if (specs->count == 0) buffer_append(&names, "nothing", 7);
    buffer_append(&names, "", 1);
    if (names.is_out_of_memory) buffer_clear(&names, 0);
    return names.data;
}

static bool is_compatible(const Shape* takes, const Shape* given) {
    if (takes->rank < 0) return true;
    if (takes->rank != given->rank) return false;
    for (int i = 0; i < takes->rank; ++i) {
        if (takes->sizes[i] >= 0 && takes->sizes[i] != given->sizes[i]) return false;
    }
    return true;
}

bool spec_check(const Spec* input, const TensorView* view, Error* error) {
    if (view->dtype == input->dtype && is_compatible(&input->shape, &view->shape)) return true;
    return error_set(error, 400, "input '%s' is %s %s, and should be %s %s", input->name,
                     dtype_name(view->dtype), shape_of_values(&view->shape).text,
                     dtype_name(input->dtype), shape_of_signature(&input->shape).text);
}
