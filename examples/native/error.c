#include "error.h"

#include <stdarg.h>
#include <stdio.h>

/* Whitespace becomes one space: names in a request must not begin a line of a log. */
static void make_one_line(char* text) {
    char* end = text;
    for (const char* at = text; *at; ++at) {
        unsigned char c = (unsigned char)*at;
        if (c == ' ' || (c >= '\t' && c <= '\r')) {
            if (end > text && end[-1] != ' ') *end++ = ' ';
        } else {
            *end++ = c < ' ' || c == 0x7f ? '?' : *at;
        }
    }
    if (end > text && end[-1] == ' ') --end;
    *end = 0;
}

bool error_set(Error* error, int status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    make_one_line(error->text);
    error->status = status;
    return false;
}

bool error_of_memory(Error* error) { return error_set(error, 503, "out of memory"); }

bool error_of_tensorflow(Error* error, const TF_Status* status) {
    int http;
    switch (TF_GetCode(status)) {
        case TF_INVALID_ARGUMENT:
        case TF_FAILED_PRECONDITION:
        case TF_OUT_OF_RANGE: http = 400; break;
        case TF_NOT_FOUND: http = 404; break;
        case TF_UNIMPLEMENTED: http = 501; break;
        case TF_RESOURCE_EXHAUSTED:
        case TF_UNAVAILABLE: http = 503; break;
        default: http = 500;
    }
    return error_set(error, http, "%s", TF_Message(status));
}
