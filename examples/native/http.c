#include "http.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "tensors.h"

enum { MOST_HEAD = 1 << 14, PIECE = 1 << 14, CLOSE_MILLISECONDS = 1000 };

static int64_t milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits until a connection can be read or written; false when the time is over. */
static bool wait_for(int connection, short events, int64_t deadline) {
    for (;;) {
        int64_t left = deadline - milliseconds();
        if (left <= 0) return false;
        struct pollfd waits = {.fd = connection, .events = events};
        int count = poll(&waits, 1, (int)left);
        if (count > 0) return true;
        if (count < 0 && errno != EINTR) return false;
    }
}

/* Returns how many bytes came, 0 at the end, -1 if there is an error or no time left. */
static ssize_t receive(int connection, char* data, size_t size, int64_t deadline) {
    for (;;) {
        ssize_t count = recv(connection, data, size, MSG_DONTWAIT);
        if (count >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return count;
        if (!wait_for(connection, POLLIN, deadline)) return -1;
    }
}

static bool send_all(int connection, struct iovec* parts, size_t count, int64_t deadline) {
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    while (message.msg_iovlen > 0) {
        ssize_t sent = sendmsg(connection, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return false;
            if (!wait_for(connection, POLLOUT, deadline)) return false;
            continue;
        }
        while (message.msg_iovlen > 0 && (size_t)sent >= message.msg_iov->iov_len) {
            sent -= (ssize_t)message.msg_iov->iov_len;
            ++message.msg_iov;
            --message.msg_iovlen;
        }
        if (message.msg_iovlen > 0) {
            message.msg_iov->iov_base = (char*)message.msg_iov->iov_base + sent;
            message.msg_iov->iov_len -= (size_t)sent;
        }
    }
    return true;
}

/* --- The head of a request --- */

typedef struct {
    bool has_length, asks_to_go_on;
    size_t length;
} Head;

/* Takes a line without its end; false if there is none. */
static bool take_line(Bytes* text, Bytes* line) {
    const char* end = text->size == 0 ? NULL : memchr(text->data, '\n', text->size);
    if (end == NULL) return false;
    *line = (Bytes){text->data, (size_t)(end - text->data)};
    text->size -= line->size + 1;
    text->data = end + 1;
    if (line->size > 0 && line->data[line->size - 1] == '\r') --line->size;
    return true;
}

/* Takes what stands before `separator`, and that; false if it is not there. */
static bool take_until(Bytes* text, char separator, Bytes* part) {
    const char* end = text->size == 0 ? NULL : memchr(text->data, separator, text->size);
    if (end == NULL) return false;
    *part = (Bytes){text->data, (size_t)(end - text->data)};
    text->size -= part->size + 1;
    text->data = end + 1;
    return true;
}

static Bytes stripped(Bytes text) {
    while (text.size > 0 && (*text.data == ' ' || *text.data == '\t')) ++text.data, --text.size;
    while (text.size > 0 && (text.data[text.size - 1] == ' ' || text.data[text.size - 1] == '\t')) {
        --text.size;
    }
    return text;
}

/* Whatever the case of letters. */
static bool is_text(Bytes text, const char* other) {
    return text.size == strlen(other) && strncasecmp(text.data, other, text.size) == 0;
}

static bool read_request_line(Bytes line, HttpRequest* request, Error* error) {
    Bytes method;
    if (!take_until(&line, ' ', &method) || !take_until(&line, ' ', &request->path) ||
        method.size == 0 || request->path.size == 0 || *request->path.data != '/') {
        return error_set(error, 400, "no request of HTTP");
    }
    if (!is_text(line, "HTTP/1.1") && !is_text(line, "HTTP/1.0")) {
        return error_set(error, 505, "only HTTP/1.1 and 1.0 are spoken here");
    }
    request->is_kept = is_text(line, "HTTP/1.1");
    request->method = is_text(method, "GET")    ? HTTP_GET
                      : is_text(method, "POST") ? HTTP_POST
                                                : HTTP_OTHER;
    return true;
}

static bool read_length(Bytes value, Head* head, Error* error) {
    size_t length = 0;
    for (size_t i = 0; i < value.size; ++i) {
        if (value.data[i] < '0' || value.data[i] > '9') value.size = 0;
        else if (length <= MOST_BYTES) length = 10 * length + (size_t)(value.data[i] - '0');
    }
    if (value.size == 0 || (head->has_length && head->length != length)) {
        return error_set(error, 400, "Content-Length is no number");
    }
    if (length > MOST_BYTES) return error_set(error, 413, "the body is larger than 256 MiB");
    head->has_length = true;
    head->length = length;
    return true;
}

static bool read_header(Bytes line, HttpRequest* request, Head* head, Error* error) {
    Bytes name;
    if (!take_until(&line, ':', &name) || name.size == 0 || stripped(name).size != name.size) {
        return error_set(error, 400, "a header of the request has no name");
    }
    Bytes value = stripped(line);
    if (is_text(name, "Content-Length")) return read_length(value, head, error);
    if (is_text(name, "Transfer-Encoding")) {
        return error_set(error, 501, "Transfer-Encoding is not served, but Content-Length");
    }
    if (is_text(name, "Connection")) {
        if (is_text(value, "close")) request->is_kept = false;
        if (is_text(value, "keep-alive")) request->is_kept = true;
    }
    if (is_text(name, "Expect")) head->asks_to_go_on = is_text(value, "100-continue");
    return true;
}

/* Reads a head from its lines; those that are wrong are seen before the head is complete. */
static HttpStatus read_head(Bytes text, HttpRequest* request, Head* head, Error* error) {
    *head = (Head){0};
    const char* begin = text.data;
    Bytes line;
    for (bool is_first = true; take_line(&text, &line); is_first = false) {
        if (is_first) {
            if (!read_request_line(line, request, error)) return HTTP_REFUSED;
        } else if (line.size > 0) {
            if (!read_header(line, request, head, error)) return HTTP_REFUSED;
        } else {
            request->size = (size_t)(text.data - begin);
            return HTTP_READ;
        }
    }
    return HTTP_CLOSED; /* not complete */
}

/* --- Requests and answers --- */

/* Receives more of a request; `most` bytes fit into the buffer already. */
static HttpStatus receive_more(int connection, Buffer* buffer, size_t most, int64_t deadline,
                               Error* error) {
    ssize_t count = receive(connection, buffer->data + buffer->size, most, deadline);
    if (count > 0) {
        buffer->size += (size_t)count;
        return HTTP_READ;
    }
    if (count == 0 && buffer->size > 0) {
        error_set(error, 400, "the request ends before its end");
        return HTTP_REFUSED;
    }
    if (count < 0 && milliseconds() >= deadline) {
        error_set(error, 408, "the request has not come in %d seconds", HTTP_SECONDS);
        return HTTP_REFUSED;
    }
    return HTTP_CLOSED;
}

static HttpStatus receive_head(int connection, Buffer* buffer, HttpRequest* request, Head* head,
                               int64_t deadline, Error* error) {
    for (;;) {
        HttpStatus status = read_head((Bytes){buffer->data, buffer->size}, request, head, error);
        if (status != HTTP_CLOSED) return status;
        if (buffer->size >= MOST_HEAD) {
            error_set(error, 431, "the headers are larger than 16 KiB");
            return HTTP_REFUSED;
        }
        if (!buffer_reserve(buffer, PIECE)) {
            error_of_memory(error);
            return HTTP_REFUSED;
        }
        status = receive_more(connection, buffer, PIECE, deadline, error);
        if (status != HTTP_READ) return status;
    }
}

static HttpStatus receive_body(int connection, Buffer* buffer, size_t size, int64_t deadline,
                               Error* error) {
    if (buffer->size < size && !buffer_reserve(buffer, size - buffer->size)) {
        error_of_memory(error);
        return HTTP_REFUSED;
    }
    while (buffer->size < size) {
        size_t most = size - buffer->size;
        HttpStatus status = receive_more(connection, buffer, most, deadline, error);
        if (status != HTTP_READ) return status;
    }
    return HTTP_READ;
}

HttpStatus http_read(int connection, Buffer* buffer, HttpRequest* request, Error* error) {
    int64_t deadline = milliseconds() + 1000 * HTTP_SECONDS;
    Head head;
    *request = (HttpRequest){0};
    HttpStatus status = receive_head(connection, buffer, request, &head, deadline, error);
    if (status != HTTP_READ) return status;
    if (request->method == HTTP_POST && !head.has_length) {
        error_set(error, 411, "the request has no Content-Length");
        return HTTP_REFUSED;
    }
    size_t begin = request->size;
    size_t path = (size_t)(request->path.data - buffer->data);
    request->size += head.length;
    if (head.asks_to_go_on && buffer->size < request->size) {
        char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
        struct iovec part = {text, sizeof text - 1};
        if (!send_all(connection, &part, 1, deadline)) return HTTP_CLOSED;
    }
    status = receive_body(connection, buffer, request->size, deadline, error);
    request->path.data = buffer->data + path; /* the buffer may have moved */
    request->body = (Bytes){buffer->data + begin, head.length};
    return status;
}

static const char* reason_of(int status) {
    switch (status) {
        case 200: return "OK";
        case 400: return "Bad Request";
        case 404: return "Not Found";
        case 405: return "Method Not Allowed";
        case 408: return "Request Timeout";
        case 411: return "Length Required";
        case 413: return "Content Too Large";
        case 431: return "Request Header Fields Too Large";
        case 501: return "Not Implemented";
        case 503: return "Service Unavailable";
        case 505: return "HTTP Version Not Supported";
        default: return "Internal Server Error";
    }
}

bool http_answer(int connection, int status, const char* type, Bytes body, bool is_kept) {
    char head[256];
    int size = snprintf(head, sizeof head,
                        "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s\r\n", status,
                        reason_of(status), type, body.size, is_kept ? "" : "Connection: close\r\n");
    struct iovec parts[] = {{head, (size_t)size}, {(char*)(uintptr_t)body.data, body.size}};
    return send_all(connection, parts, 2, milliseconds() + 1000 * HTTP_SECONDS);
}

void http_close(int connection) {
    /* To close with bytes unread would take the answer from the client. */
    shutdown(connection, SHUT_WR);
    char unread[PIECE];
    int64_t deadline = milliseconds() + CLOSE_MILLISECONDS;
    while (milliseconds() < deadline &&
           receive(connection, unread, sizeof unread, deadline) > 0) {
    }
    close(connection);
}
