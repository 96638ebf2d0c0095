/* A SavedModel that answers requests; any number of threads may call it. */

#ifndef MODEL_H
#define MODEL_H

#include "signature.h"

typedef struct {
    TF_Session* session;
    TF_Graph* graph;
    Signature signature;
} Model;

/* Loads a SavedModel with the tag "serve"; it is freed by `model_close` in any case. */
bool model_load(Model* model, const char* directory, const char* signature, Error* error);

/* Runs one row of zeros, so that the first request does not wait for what is made in a first run. */
bool model_warm_up(const Model* model, Error* error);

/* Appends the PredictResponse for a PredictRequest. */
bool model_predict(const Model* model, Bytes request, Buffer* answer, Error* error);

/* Ends the session and frees the tables. */
void model_close(Model* model);

#endif
