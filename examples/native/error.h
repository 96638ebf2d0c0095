/* What went wrong: one line of text and the status of HTTP that it is answered with. */

#ifndef ERROR_H
#define ERROR_H

#include <stdbool.h>
#include <stdlib.h>

#include "tensorflow/c/tf_status.h"

typedef struct {
    int status;
    char text[501];
} Error;

/* All return false, so that a function can end with them. */
bool error_set(Error* error, int status, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
bool error_of_tensorflow(Error* error, const TF_Status* status);
bool error_of_memory(Error* error);

#endif
