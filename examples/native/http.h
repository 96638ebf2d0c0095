/* The part of HTTP/1.1 that the server needs: requests with a Content-Length, kept connections. */

#ifndef HTTP_H
#define HTTP_H

#include "buffer.h"
#include "error.h"

enum { HTTP_SECONDS = 30 }; /* for a request to come, and for an answer to go */

typedef enum { HTTP_GET, HTTP_POST, HTTP_OTHER } HttpMethod;

typedef struct {
    HttpMethod method;
    Bytes path, body; /* in the buffer that it was read into */
    size_t size;      /* of the whole request there */
    bool is_kept;     /* the connection, after the answer */
} HttpRequest;

typedef enum { HTTP_READ, HTTP_CLOSED, HTTP_REFUSED } HttpStatus;

/* Reads a request to the beginning of `buffer`, which may have some of it. */
HttpStatus http_read(int connection, Buffer* buffer, HttpRequest* request, Error* error);

/* Sends an answer; false if it could not be sent. */
bool http_answer(int connection, int status, const char* type, Bytes body, bool is_kept);

/* Closes a connection whose client may still be sending, so that it can read the answer. */
void http_close(int connection);

#endif
