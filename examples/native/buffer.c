#include "buffer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool buffer_reserve(Buffer* buffer, size_t more) {
    if (more <= buffer->capacity - buffer->size) return true;
    if (more > SIZE_MAX / 2 - buffer->size) return false;
    size_t capacity = buffer->size + more;
    if (capacity < 2 * buffer->capacity) capacity = 2 * buffer->capacity;
    char* data = realloc(buffer->data, capacity);
    if (data == NULL) return false;
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

void buffer_append(Buffer* buffer, const void* data, size_t size) {
    if (size == 0) return;
    if (!buffer_reserve(buffer, size)) {
        buffer->is_out_of_memory = true;
        return;
    }
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
}

void buffer_clear(Buffer* buffer, size_t most) {
    buffer->size = 0;
    buffer->is_out_of_memory = false;
    if (buffer->capacity <= most) return;
    free(buffer->data);
    *buffer = (Buffer){0};
}
