/* The wire format of protocol buffers, read and written. */

#ifndef WIRE_H
#define WIRE_H

#include <stdint.h>

#include "buffer.h"

typedef enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 } WireType;

/* A field of a message; `value` is a number, or `bytes` are those of the message that is read. */
typedef struct {
    uint64_t number;
    WireType type;
    uint64_t value;
    Bytes bytes;
} Field;

typedef enum { WIRE_FIELD, WIRE_END, WIRE_DAMAGED } WireStatus;

/* Takes the next field from `message`. */
WireStatus wire_next(Bytes* message, Field* field);

/* Takes a number from packed ones. */
bool wire_number(Bytes* packed, WireType type, uint64_t* value);

/* A field of another type than it should have counts as unknown, as in Google's readers. */
bool field_is(const Field* field, uint64_t number, WireType type);

void wire_put_number(Buffer* buffer, uint64_t number, uint64_t value);
void wire_put_bytes(Buffer* buffer, uint64_t number, Bytes bytes);

/* Begins a message that is a field; what is put next is in it, until `wire_end` gets the result. */
size_t wire_begin(Buffer* buffer, uint64_t number);
void wire_end(Buffer* buffer, size_t begin);

#endif
