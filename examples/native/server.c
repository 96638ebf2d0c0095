/* Serves a SavedModel over HTTP on this machine, with ops from a library and without Python. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "http.h"
#include "model.h"

static const char USAGE[] =
    "usage: server [--ops LIBRARY] [--signature NAME] [--port N] [--threads N] [--connections N] "
    "MODEL\n"
    "  --ops          what `fusion build-ops` wrote, for a model with fused ops\n"
    "  --signature    default: serving_default\n"
    "  --port         0 is any that is free; default: 8501\n"
    "  --threads      requests that are computed at the same time; default: 8\n"
    "  --connections  at the same time, others are refused; default: 512\n";

static const char PREDICT_PATH[] = "/v1/models/default:predict";
static const char HEALTH_PATH[] = "/healthz";

enum { FAILED = 2, MOST_THREADS = 1024, MOST_CONNECTIONS = 1 << 16 };
enum { KEPT_BYTES = 1 << 22 }; /* of the buffers of a thread, from one request to the next */
enum { MAPPED_BYTES = 1 << 25, FREE_BYTES = 1 << 27 }; /* see keep_memory */

typedef struct {
    const char *model, *library, *signature;
    long port, threads, connections;
} Options;

typedef struct {
    Model model;
    int listener, events, port;
    long most_connections;
    atomic_long connections;
    atomic_bool is_stopping;
    sigset_t while_waiting; /* signals that are blocked there */
} Server;

/* What a thread reads requests into, and writes answers into. */
typedef struct {
    Buffer request, answer;
} Buffers;

/* --- Requests --- */

static bool is_path(const HttpRequest* request, const char* path) {
    size_t size = strlen(path);
    return request->path.size == size && memcmp(request->path.data, path, size) == 0;
}

static bool refuse(int connection, const Error* error, bool is_kept) {
    char line[sizeof error->text + 1];
    int size = snprintf(line, sizeof line, "%s\n", error->text);
    Bytes body = {line, (size_t)size};
    return http_answer(connection, error->status, "text/plain; charset=utf-8", body, is_kept);
}

/* Answers a request; returns whether the connection goes on. */
static bool answer(Server* server, int connection, const HttpRequest* request, Buffer* buffer) {
    bool is_kept = request->is_kept && !atomic_load(&server->is_stopping);
    bool is_health = is_path(request, HEALTH_PATH);
    Error error;
    if (!is_health && !is_path(request, PREDICT_PATH)) {
        error_set(&error, 404, "no such path, but %s and %s", PREDICT_PATH, HEALTH_PATH);
    } else if (request->method != (is_health ? HTTP_GET : HTTP_POST)) {
        error_set(&error, 405, "only %s is served here", is_health ? "GET" : "POST");
        /* The answer to other methods may be one without a body. */
        is_kept = is_kept && request->method != HTTP_OTHER;
    } else if (is_health) {
        return http_answer(connection, 200, "text/plain", (Bytes){"ok\n", 3}, is_kept) && is_kept;
    } else if (model_predict(&server->model, request->body, buffer, &error)) {
        Bytes body = {buffer->data, buffer->size};
        return http_answer(connection, 200, "application/x-protobuf", body, is_kept) && is_kept;
    }
    return refuse(connection, &error, is_kept) && is_kept;
}

/* Answers what a connection has sent; returns whether the connection goes on. */
static bool serve_requests(Server* server, int connection, Buffers* buffers) {
    buffer_clear(&buffers->request, KEPT_BYTES);
    for (;;) {
        HttpRequest request;
        Error error;
        HttpStatus status = http_read(connection, &buffers->request, &request, &error);
        if (status == HTTP_REFUSED) refuse(connection, &error, false);
        if (status != HTTP_READ) return false;
        buffer_clear(&buffers->answer, KEPT_BYTES);
        if (!answer(server, connection, &request, &buffers->answer)) return false;
        size_t left = buffers->request.size - request.size;
        if (left == 0) return true;
        /* The client did not wait for the answer. */
        memmove(buffers->request.data, buffers->request.data + request.size, left);
        buffers->request.size = left;
    }
}

/* --- Connections --- */

/* Lets one thread, whichever is free, be told of what comes next. */
static bool watch(const Server* server, int socket, int operation) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data = {.fd = socket}};
    return epoll_ctl(server->events, operation, socket, &event) == 0;
}

static void accept_one(Server* server) {
    int connection = accept(server->listener, NULL, NULL);
    bool is_out_of_files = connection < 0 && (errno == EMFILE || errno == ENFILE);
    if (is_out_of_files) nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    watch(server, server->listener, EPOLL_CTL_MOD);
    if (connection < 0) return;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (atomic_fetch_add(&server->connections, 1) >= server->most_connections) {
        Error error;
        error_set(&error, 503, "the server has %ld connections, and takes no more",
                  server->most_connections);
        refuse(connection, &error, false);
    } else if (watch(server, connection, EPOLL_CTL_ADD)) {
        return;
    }
    close(connection);
    atomic_fetch_sub(&server->connections, 1);
}

static void serve_connection(Server* server, int connection, Buffers* buffers) {
    if (serve_requests(server, connection, buffers) &&
        watch(server, connection, EPOLL_CTL_MOD)) {
        return;
    }
    http_close(connection);
    atomic_fetch_sub(&server->connections, 1);
}

/* A thread: takes connections and requests until the server stops and none is left. */
static void* work(void* argument) {
    Server* server = argument;
    Buffers buffers = {0};
    for (;;) {
        /* The signal that says so interrupts the wait, also if it came before. */
        int wait = atomic_load(&server->is_stopping) ? 0 : -1;
        struct epoll_event event;
        int count = epoll_pwait(server->events, &event, 1, wait, &server->while_waiting);
        if (count == 0) break;
        if (count < 0) continue;
        if (event.data.fd == server->listener) accept_one(server);
        else serve_connection(server, event.data.fd, &buffers);
    }
    buffer_clear(&buffers.request, 0);
    buffer_clear(&buffers.answer, 0);
    return NULL;
}

/* --- The server --- */

static void wake_up(int signal) { (void)signal; }

static bool listen_on(Server* server, long port, Error* error) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    server->listener = socket(AF_INET, SOCK_STREAM, 0);
    server->events = epoll_create1(0);
    if (server->listener < 0 || server->events < 0) {
        return error_set(error, 500, "no socket: %s", strerror(errno));
    }
    setsockopt(server->listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(server->listener, (struct sockaddr*)&address, size) != 0 ||
        listen(server->listener, SOMAXCONN) != 0 ||
        fcntl(server->listener, F_SETFL, O_NONBLOCK) != 0 ||
        getsockname(server->listener, (struct sockaddr*)&address, &size) != 0 ||
        !watch(server, server->listener, EPOLL_CTL_ADD)) {
        return error_set(error, 500, "port %ld: %s", port, strerror(errno));
    }
    server->port = ntohs(address.sin_port);
    return true;
}

/* Serves until a signal comes: then what has come is answered, and nothing else taken. */
static bool serve(Server* server, const Options* options, const sigset_t* ends, double seconds,
                  Error* error) {
    pthread_t threads[MOST_THREADS];
    long count = 0;
    while (count < options->threads &&
           pthread_create(&threads[count], NULL, work, server) == 0) {
        ++count;
    }
    if (count == options->threads) {
        printf("serving %s on 127.0.0.1:%d, loaded in %.1f s\n", options->model, server->port,
               seconds);
        fflush(stdout);
        int signal;
        sigwait(ends, &signal);
    }
    epoll_ctl(server->events, EPOLL_CTL_DEL, server->listener, NULL);
    atomic_store(&server->is_stopping, true);
    for (long i = 0; i < count; ++i) pthread_kill(threads[i], SIGUSR1);
    for (long i = 0; i < count; ++i) pthread_join(threads[i], NULL);
    if (count < options->threads) return error_set(error, 500, "only %ld threads start", count);
    return true;
}

static bool load_library(const char* path, Error* error) {
    if (path == NULL) return true;
    /* A name without a folder would be looked for where the system has its libraries. */
    char* file = realpath(path, NULL);
    if (file == NULL) return error_set(error, 500, "%s: %s", path, strerror(errno));
    TF_Status* status = TF_NewStatus();
    TF_DeleteLibraryHandle(TF_LoadLibrary(file, status));
    free(file);
    bool is_loaded = TF_GetCode(status) == TF_OK;
    if (!is_loaded) error_of_tensorflow(error, status);
    TF_DeleteStatus(status);
    return is_loaded;
}

/* Keeps what requests free for the next ones. By default the allocator gives it back to the system
 * after each, and to get the pages anew takes a third of the time of a large request. */
static void keep_memory(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES); /* the most that glibc takes */
    mallopt(M_TRIM_THRESHOLD, FREE_BYTES);
#endif
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool run(Server* server, const Options* options, const sigset_t* ends, Error* error) {
    double begin = seconds_now();
    if (!load_library(options->library, error)) return false;
    bool is_served = model_load(&server->model, options->model, options->signature, error);
    if (is_served) {
        if (!model_warm_up(&server->model, error)) {
            fprintf(stderr, "not warmed up: %s\n", error->text);
        }
        is_served = listen_on(server, options->port, error) &&
                    serve(server, options, ends, seconds_now() - begin, error);
    }
    model_close(&server->model);
    return is_served;
}

static bool parse_number(const char* text, long least, long most, long* number) {
    char* end;
    errno = 0;
    *number = strtol(text, &end, 10);
    return end != text && *end == 0 && errno == 0 && *number >= least && *number <= most;
}

static bool parse(int count, char** arguments, Options* options) {
    *options = (Options){
        .signature = "serving_default", .port = 8501, .threads = 8, .connections = 512};
    for (int i = 1; i < count; ++i) {
        const char *option = arguments[i], *value = i + 1 < count ? arguments[i + 1] : NULL;
        if (option[0] != '-') {
            if (options->model != NULL) return false;
            options->model = option;
            continue;
        }
        if (value == NULL) return false;
        ++i;
        if (strcmp(option, "--ops") == 0) {
            options->library = value;
        } else if (strcmp(option, "--signature") == 0) {
            options->signature = value;
        } else if (strcmp(option, "--port") == 0) {
            if (!parse_number(value, 0, 65535, &options->port)) return false;
        } else if (strcmp(option, "--threads") == 0) {
            if (!parse_number(value, 1, MOST_THREADS, &options->threads)) return false;
        } else if (strcmp(option, "--connections") == 0) {
            if (!parse_number(value, 1, MOST_CONNECTIONS, &options->connections)) return false;
        } else {
            return false;
        }
    }
    return options->model != NULL;
}

int main(int count, char** arguments) {
    Options options;
    if (!parse(count, arguments, &options)) {
        fputs(USAGE, stderr);
        return FAILED;
    }
    keep_memory();
    /* Blocked in all threads, those of TensorFlow too, and waited for. */
    sigset_t ends, blocked;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGINT);
    blocked = ends;
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    signal(SIGUSR1, wake_up);
    signal(SIGPIPE, SIG_IGN);
    Server server = {.listener = -1, .events = -1, .most_connections = options.connections};
    server.while_waiting = ends;
    Error error;
    bool is_served = run(&server, &options, &ends, &error);
    if (server.listener >= 0) close(server.listener);
    if (server.events >= 0) close(server.events);
    if (!is_served) {
        fprintf(stderr, "server: error: %s\n", error.text);
        return FAILED;
    }
    puts("stopped");
    return 0;
}
