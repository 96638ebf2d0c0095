/* Bytes: those of others, and a buffer of one's own that grows. */

#ifndef BUFFER_H
#define BUFFER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    const char* data;
    size_t size;
} Bytes;

/* All zeros is an empty one. */
typedef struct {
    char* data;
    size_t size, capacity;
    bool is_out_of_memory; /* Something was not appended. */
} Buffer;

/* Makes memory for `more` bytes behind those that are there; false without memory. */
bool buffer_reserve(Buffer* buffer, size_t more);

void buffer_append(Buffer* buffer, const void* data, size_t size);

/* Empties it; memory above `most` bytes is given back. */
void buffer_clear(Buffer* buffer, size_t most);

#endif
