#include "model.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { REQUEST_MODEL_SPEC = 1, REQUEST_INPUTS = 2, RESPONSE_OUTPUTS = 1, RESPONSE_MODEL_SPEC = 2 };
enum { MODEL_SPEC_SIGNATURE = 3, ENTRY_KEY = 1, ENTRY_VALUE = 2 };

/* Of the names in a message. */
enum { MOST_NAME = 100 };

bool model_load(Model* model, const char* directory, const char* signature, Error* error) {
    *model = (Model){.graph = TF_NewGraph()};
    TF_Status* status = TF_NewStatus();
    TF_SessionOptions* options = TF_NewSessionOptions();
    TF_Buffer* meta_graph = TF_NewBuffer();
    const char* tags[] = {"serve"};
    model->session = TF_LoadSessionFromSavedModel(options, NULL, directory, tags, 1, model->graph,
                                                  meta_graph, status);
    Error reason;
    bool is_loaded = TF_GetCode(status) == TF_OK;
    if (!is_loaded) {
        error_of_tensorflow(&reason, status);
    } else {
        is_loaded = signature_read(&model->signature, signature, meta_graph, model->graph, &reason);
    }
    if (!is_loaded) error_set(error, reason.status, "%s: %s", directory, reason.text);
    TF_DeleteBuffer(meta_graph);
    TF_DeleteSessionOptions(options);
    TF_DeleteStatus(status);
    return is_loaded;
}

void model_close(Model* model) {
    TF_Status* status = TF_NewStatus();
    if (model->session != NULL) {
        TF_CloseSession(model->session, status);
        TF_DeleteSession(model->session, status);
    }
    TF_DeleteStatus(status);
    TF_DeleteGraph(model->graph);
    signature_free(&model->signature);
}

/* What one request needs, an item for each input or output. */
typedef struct {
    TensorView* views;
    TF_Tensor **inputs, **outputs;
    TF_Output *fed, *fetched;
} Call;

static bool begin_call(Call* call, const Signature* signature, Error* error) {
    size_t inputs = signature->inputs.count, outputs = signature->outputs.count;
    /* One more of each, for a model without any. */
    call->views = calloc(inputs + 1, sizeof *call->views);
    call->inputs = calloc(inputs + 1, sizeof *call->inputs);
    call->outputs = calloc(outputs + 1, sizeof *call->outputs);
    call->fed = calloc(inputs + 1, sizeof *call->fed);
    call->fetched = calloc(outputs + 1, sizeof *call->fetched);
    if (!call->views || !call->inputs || !call->outputs || !call->fed || !call->fetched) {
        return error_of_memory(error);
    }
    for (size_t i = 0; i < inputs; ++i) call->fed[i] = signature->inputs.items[i].tensor;
    for (size_t i = 0; i < outputs; ++i) call->fetched[i] = signature->outputs.items[i].tensor;
    return true;
}

static void end_call(Call* call, const Signature* signature) {
    for (size_t i = 0; call->inputs && i < signature->inputs.count; ++i) {
        TF_DeleteTensor(call->inputs[i]);
    }
    for (size_t i = 0; call->outputs && i < signature->outputs.count; ++i) {
        TF_DeleteTensor(call->outputs[i]);
    }
    free(call->views);
    free(call->inputs);
    free(call->outputs);
    free(call->fed);
    free(call->fetched);
}

static bool run(const Model* model, Call* call, Error* error) {
    const Signature* signature = &model->signature;
    TF_Status* status = TF_NewStatus();
    TF_SessionRun(model->session, NULL, call->fed, call->inputs, (int)signature->inputs.count,
                  call->fetched, call->outputs, (int)signature->outputs.count, NULL, 0, NULL,
                  status);
    bool is_run = TF_GetCode(status) == TF_OK;
    if (!is_run) error_of_tensorflow(error, status);
    TF_DeleteStatus(status);
    return is_run;
}

/* In signatures of several requests, how many candidates each has: one, to warm up. */
static const char COUNTS[] = "candidates_per_request";

bool model_warm_up(const Model* model, Error* error) {
    const Specs* inputs = &model->signature.inputs;
    Call call = {0};
    bool is_made = begin_call(&call, &model->signature, error);
    for (size_t i = 0; is_made && i < inputs->count; ++i) {
        Shape shape = inputs->items[i].shape;
        if (shape.rank < 0) shape = (Shape){.rank = 1, .sizes = {-1}};
        for (int k = 0; k < shape.rank; ++k) {
            if (shape.sizes[k] < 0) shape.sizes[k] = 1;
        }
        is_made = tensor_fits(inputs->items[i].dtype, &shape);
        if (is_made) call.inputs[i] = tensor_zeros(inputs->items[i].dtype, &shape);
        if (call.inputs[i] == NULL) is_made = error_of_memory(error);
        if (is_made && inputs->items[i].dtype == TF_INT64 &&
            strcmp(inputs->items[i].name, COUNTS) == 0) {
            *(int64_t*)TF_TensorData(call.inputs[i]) = 1;
        }
    }
    bool is_run = is_made && run(model, &call, error);
    end_call(&call, &model->signature);
    return is_run;
}

static bool damaged(Error* error) {
    return error_set(error, 400, "the body is no serialized PredictRequest");
}

static bool check_model_spec(const Model* model, Bytes message, Error* error) {
    Bytes name = {0};
    Field field;
    WireStatus status;
    while ((status = wire_next(&message, &field)) == WIRE_FIELD) {
        if (field_is(&field, MODEL_SPEC_SIGNATURE, WIRE_BYTES)) name = field.bytes;
    }
    if (status != WIRE_END) return damaged(error);
    const char* served = model->signature.name;
    if (name.size == 0) return true;
    if (name.size == strlen(served) && memcmp(name.data, served, name.size) == 0) return true;
    int shown = name.size < MOST_NAME ? (int)name.size : MOST_NAME;
    return error_set(error, 404, "signature '%.*s' is not served, but '%s'", shown, name.data,
                     served);
}

/* Says which input is too many or missing, and what the signature takes. */
static bool wrong_inputs(const Model* model, const char* what, Bytes name, Error* error) {
    char* takes = specs_names(&model->signature.inputs);
    int shown = name.size < MOST_NAME ? (int)name.size : MOST_NAME;
    error_set(error, 400, "the request has %s '%.*s'; signature '%s' takes %s", what, shown,
              name.data, model->signature.name, takes == NULL ? "others" : takes);
    free(takes);
    return false;
}

/* Reads an entry of `inputs`; of a name that comes twice the last one counts. */
static bool read_input(const Model* model, Call* call, Bytes entry, Error* error) {
    Bytes name = {"", 0}, tensor = {"", 0};
    Field field;
    WireStatus status;
    while ((status = wire_next(&entry, &field)) == WIRE_FIELD) {
        if (field_is(&field, ENTRY_KEY, WIRE_BYTES)) name = field.bytes;
        if (field_is(&field, ENTRY_VALUE, WIRE_BYTES)) tensor = field.bytes;
    }
    if (status != WIRE_END) return damaged(error);
    int index = specs_find(&model->signature.inputs, name);
    if (index < 0) return wrong_inputs(model, "an input", name, error);
    const char* reason = tensor_view(tensor, &call->views[index]);
    if (reason == NULL) return true;
    return error_set(error, 400, "input '%s' cannot be read: %s",
                     model->signature.inputs.items[index].name, reason);
}

static bool read_request(const Model* model, Call* call, Bytes request, Error* error) {
    Field field;
    WireStatus status;
    while ((status = wire_next(&request, &field)) == WIRE_FIELD) {
        if (field_is(&field, REQUEST_MODEL_SPEC, WIRE_BYTES)) {
            if (!check_model_spec(model, field.bytes, error)) return false;
        } else if (field_is(&field, REQUEST_INPUTS, WIRE_BYTES)) {
            if (!read_input(model, call, field.bytes, error)) return false;
        }
    }
    return status == WIRE_END || damaged(error);
}

/* Makes the tensors, after all inputs were found to be those that the signature takes. */
static bool make_inputs(const Model* model, Call* call, Error* error) {
    const Specs* inputs = &model->signature.inputs;
    for (size_t i = 0; i < inputs->count; ++i) {
        const Spec* input = &inputs->items[i];
        const TensorView* view = &call->views[i];
        if (view->message.data == NULL) {
            return wrong_inputs(model, "no input", (Bytes){input->name, strlen(input->name)}, error);
        }
        if (!tensor_fits(view->dtype, &view->shape)) {
            return error_set(error, 400, "input '%s' cannot be read: its shape is %s", input->name,
                             shape_of_values(&view->shape).text);
        }
        if (!spec_check(input, view, error)) return false;
    }
    size_t budget = MOST_BYTES;
    for (size_t i = 0; i < inputs->count; ++i) {
        const char* reason = tensor_read(&call->views[i], &budget, &call->inputs[i]);
        if (reason != NULL) {
            return error_set(error, 400, "input '%s' cannot be read: %s", inputs->items[i].name,
                             reason);
        }
    }
    return true;
}

static bool write_response(const Model* model, const Call* call, Buffer* answer, Error* error) {
    const Specs* outputs = &model->signature.outputs;
    for (size_t i = 0; i < outputs->count; ++i) {
        const char* name = outputs->items[i].name;
        size_t entry = wire_begin(answer, RESPONSE_OUTPUTS);
        wire_put_bytes(answer, ENTRY_KEY, (Bytes){name, strlen(name)});
        if (!tensor_write(answer, ENTRY_VALUE, call->outputs[i])) {
            return error_set(error, 500, "output '%s' has a dtype that is not served", name);
        }
        wire_end(answer, entry);
    }
    size_t model_spec = wire_begin(answer, RESPONSE_MODEL_SPEC);
    const char* signature = model->signature.name;
    wire_put_bytes(answer, MODEL_SPEC_SIGNATURE, (Bytes){signature, strlen(signature)});
    wire_end(answer, model_spec);
    if (answer->is_out_of_memory) return error_of_memory(error);
    if (answer->size > INT_MAX) return error_set(error, 500, "the answer is larger than 2 GiB");
    return true;
}

bool model_predict(const Model* model, Bytes request, Buffer* answer, Error* error) {
    Call call = {0};
    bool is_answered = begin_call(&call, &model->signature, error) &&
                       read_request(model, &call, request, error) &&
                       make_inputs(model, &call, error) && run(model, &call, error) &&
                       write_response(model, &call, answer, error);
    end_call(&call, &model->signature);
    return is_answered;
}
