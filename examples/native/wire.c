#include "wire.h"

static bool take_varint(Bytes* from, uint64_t* value) {
    uint64_t result = 0;
    for (unsigned shift = 0; shift < 64 && from->size > 0; shift += 7) {
        uint8_t byte = (uint8_t)*from->data++;
        --from->size;
        result |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = result;
            return true;
        }
    }
    return false;
}

static bool take_fixed(Bytes* from, unsigned size, uint64_t* value) {
    if (from->size < size) return false;
    uint64_t result = 0;
    for (unsigned i = 0; i < size; ++i) result |= (uint64_t)(uint8_t)from->data[i] << 8 * i;
    *value = result;
    from->data += size;
    from->size -= size;
    return true;
}

bool wire_number(Bytes* packed, WireType type, uint64_t* value) {
    if (type == WIRE_VARINT) return take_varint(packed, value);
    return take_fixed(packed, type == WIRE_FIXED32 ? 4 : 8, value);
}

static bool take_bytes(Bytes* from, Bytes* bytes) {
    uint64_t size;
    if (!take_varint(from, &size) || size > from->size) return false;
    *bytes = (Bytes){from->data, (size_t)size};
    from->data += size;
    from->size -= (size_t)size;
    return true;
}

WireStatus wire_next(Bytes* message, Field* field) {
    if (message->size == 0) return WIRE_END;
    uint64_t tag;
    if (!take_varint(message, &tag) || tag >> 3 == 0) return WIRE_DAMAGED;
    *field = (Field){.number = tag >> 3, .type = (WireType)(tag & 7)};
    bool is_read = false;
    switch (field->type) {
        case WIRE_VARINT:
        case WIRE_FIXED32:
        case WIRE_FIXED64: is_read = wire_number(message, field->type, &field->value); break;
        case WIRE_BYTES: is_read = take_bytes(message, &field->bytes); break;
        default: break; /* Groups are of no message that is read here. */
    }
    return is_read ? WIRE_FIELD : WIRE_DAMAGED;
}

bool field_is(const Field* field, uint64_t number, WireType type) {
    return field->number == number && field->type == type;
}

static void put_varint(Buffer* buffer, uint64_t value) {
    uint8_t bytes[10];
    size_t size = 0;
    for (; value >= 0x80; value >>= 7) bytes[size++] = (uint8_t)(value | 0x80);
    bytes[size++] = (uint8_t)value;
    buffer_append(buffer, bytes, size);
}

void wire_put_number(Buffer* buffer, uint64_t number, uint64_t value) {
    put_varint(buffer, number << 3 | WIRE_VARINT);
    put_varint(buffer, value);
}

void wire_put_bytes(Buffer* buffer, uint64_t number, Bytes bytes) {
    put_varint(buffer, number << 3 | WIRE_BYTES);
    put_varint(buffer, bytes.size);
    buffer_append(buffer, bytes.data, bytes.size);
}

/* Sizes are known afterwards: they have five bytes each, whatever the number needs. */
enum { SIZE_BYTES = 5 };

size_t wire_begin(Buffer* buffer, uint64_t number) {
    put_varint(buffer, number << 3 | WIRE_BYTES);
    buffer_append(buffer, (const char[SIZE_BYTES]){0}, SIZE_BYTES);
    return buffer->size;
}

void wire_end(Buffer* buffer, size_t begin) {
    if (buffer->is_out_of_memory) return;
    size_t size = buffer->size - begin;
    char* at = buffer->data + begin - SIZE_BYTES;
    for (int i = 0; i < SIZE_BYTES; ++i, size >>= 7) {
        at[i] = (char)((size & 0x7f) | (i < SIZE_BYTES - 1 ? 0x80 : 0));
    }
}
