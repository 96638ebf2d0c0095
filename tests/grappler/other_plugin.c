/* A library with a graph optimizer for the CPU that changes nothing, as TensorFlow loads one. */

#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/experimental/grappler/grappler.h"

int graphs_seen = 0;

static void release(void* data, size_t size) { free(data); }

static void optimize(void* optimizer, const TF_Buffer* graph, const TF_GrapplerItem* item,
                     TF_Buffer* result, TF_Status* status) {
  void* copy = malloc(graph->length);
  memcpy(copy, graph->data, graph->length);
  result->data = copy;
  result->length = graph->length;
  result->data_deallocator = release;
  graphs_seen++;
}

void TF_InitGraph(TP_OptimizerRegistrationParams* params, TF_Status* status) {
  params->struct_size = TP_OPTIMIZER_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->optimizer_configs->struct_size = TP_OPTIMIZER_CONFIGS_STRUCT_SIZE;
  params->optimizer->struct_size = TP_OPTIMIZER_STRUCT_SIZE;
  params->device_type = "CPU";
  params->optimizer->optimize_func = optimize;
}
