/* An operator in C or C++ for `shared-library:`, with dora's interface and without dora's library.
 *
 * Include this file, write the three functions that are declared below, and compile with nothing else:
 *
 *     cc -shared -fPIC -O2 counter.c -o libcounter.so
 *
 * Types and functions have the names that they have in dora, so that a source written for dora's
 * operator_api.h compiles with this file instead. Names with `headrace_` are additions.
 */
#ifndef HEADRACE_OPERATOR_H
#define HEADRACE_OPERATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Arrow's C data interface: https://arrow.apache.org/docs/format/CDataInterface.html ---- */

#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#endif

/* ---- What goes in and out ---- */

/* Bytes, or a text without a 0 at its end. Memory that changes hands comes from malloc. */
typedef struct Vec_uint8 {
    uint8_t *ptr;
    size_t len;
    size_t cap;
} Vec_uint8_t;

/* NULL is success. Make errors with headrace_error. */
typedef struct DoraResult {
    Vec_uint8_t *error;
} DoraResult_t;

/* operator_context is yours: what you return here is given to the other functions. It may be NULL. */
typedef struct DoraInitResult {
    DoraResult_t result;
    void *operator_context;
} DoraInitResult_t;

enum DoraStatus { DORA_STATUS_CONTINUE = 0, DORA_STATUS_STOP = 1, DORA_STATUS_STOP_ALL = 2 };
typedef uint8_t DoraStatus_t;

typedef struct OnEventResult {
    DoraResult_t result;
    DoraStatus_t status;
} OnEventResult_t;

typedef struct Metadata {
    Vec_uint8_t open_telemetry_context;
} Metadata_t;

/* A message. Read it with the functions below. */
typedef struct Input {
    uint64_t has_data;
    struct ArrowArray data_array;
    Vec_uint8_t id;
    Metadata_t metadata;
    struct ArrowSchema schema;
} Input_t;

typedef struct Output {
    Vec_uint8_t id;
    Metadata_t metadata;
    struct ArrowArray data_array;
    struct ArrowSchema schema;
} Output_t;

/* One of: input is not NULL (a message), input_closed.ptr is not NULL (the id of an input that has ended), stop,
 * error.ptr is not NULL (what went wrong with the inputs). All of it belongs to the caller. */
typedef struct RawEvent {
    Input_t *input;
    Vec_uint8_t input_closed;
    bool stop;
    Vec_uint8_t error;
} RawEvent_t;

typedef struct ArcDynFn1_DoraResult_Output {
    void *env_ptr;
    DoraResult_t (*call)(void *, Output_t);
    void (*release)(void *);
    void (*retain)(void *);
} ArcDynFn1_DoraResult_Output_t;

typedef struct SendOutput {
    ArcDynFn1_DoraResult_Output_t send_output;
} SendOutput_t;

/* ---- The operator: these three you write ---- */

DoraInitResult_t dora_init_operator(void);
OnEventResult_t dora_on_event(RawEvent_t *event, const SendOutput_t *send_output, void *operator_context);
DoraResult_t dora_drop_operator(void *operator_context);

/* ---- The operator's memory: write both of these, if it is to be saved with each epoch ---- */

/* Give everything that the operator has to remember to `write`, in one call or in several. The bytes are copied. */
typedef void (*headrace_write_t)(void *sink, const uint8_t *bytes, size_t length);
DoraResult_t headrace_snapshot_operator(void *operator_context, void *sink, headrace_write_t write);

/* Called in place of dora_init_operator, with the bytes that were written. They belong to the caller. */
DoraInitResult_t headrace_restore_operator(const uint8_t *bytes, size_t length);

/* ---- Reading ---- */

/* The id of the input, with a 0 at its end; dora_free_input_id frees it. */
static inline char *dora_read_input_id(const Input_t *input) {
    char *id = (char *)malloc(input->id.len + 1);
    memcpy(id, input->id.ptr, input->id.len);
    id[input->id.len] = 0;
    return id;
}

static inline void dora_free_input_id(char *id) { free(id); }

static inline bool headrace_input_is(const Input_t *input, const char *id) {
    return strlen(id) == input->id.len && memcmp(id, input->id.ptr, input->id.len) == 0;
}

/* A copy of the bytes of an array of type uint8, once per message; dora_free_data frees it. The ptr is NULL if the
 * array is of another type or was read before. */
static inline Vec_uint8_t dora_read_data(Input_t *input) {
    Vec_uint8_t data = {NULL, 0, 0};
    if (!input->has_data || strcmp(input->schema.format, "C") != 0) return data;
    struct ArrowArray *array = &input->data_array;
    data.len = data.cap = (size_t)array->length;
    data.ptr = (uint8_t *)malloc(data.len ? data.len : 1);
    if (data.len) memcpy(data.ptr, (const uint8_t *)array->buffers[1] + array->offset, data.len);
    input->has_data = 0;
    if (array->release) array->release(array);
    return data;
}

static inline void dora_free_data(Vec_uint8_t data) { free(data.ptr); }

/* The array and its type, to be read in place while the event is handled; NULL if it was read before. */
static inline const struct ArrowArray *headrace_input_array(const Input_t *input) {
    return input->has_data ? &input->data_array : NULL;
}

static inline const struct ArrowSchema *headrace_input_schema(const Input_t *input) { return &input->schema; }

/* Take the array out of the message: whoever has it releases it. */
static inline struct ArrowArray headrace_take_array(Input_t *input) {
    input->has_data = 0;
    return input->data_array;
}

/* ---- Sending, and failing ---- */

static inline Vec_uint8_t headrace_text(const char *text) {
    Vec_uint8_t copy;
    copy.len = copy.cap = strlen(text);
    copy.ptr = (uint8_t *)malloc(copy.len ? copy.len : 1);
    memcpy(copy.ptr, text, copy.len);
    if (!copy.cap) copy.cap = 1;
    return copy;
}

/* A result that says what went wrong: returned from an operator's function, it ends the operator. */
static inline DoraResult_t headrace_error(const char *message) {
    DoraResult_t result;
    result.error = (Vec_uint8_t *)malloc(sizeof *result.error);
    *result.error = headrace_text(message);
    return result;
}

/* Forget an error that sending returned. */
static inline void headrace_free_error(DoraResult_t result) {
    if (!result.error) return;
    if (result.error->cap) free(result.error->ptr);
    free(result.error);
}

/* Send an array of any type. It changes hands, and is released even if it cannot be sent. */
static inline DoraResult_t headrace_send_array(const SendOutput_t *send_output, const char *id,
                                               struct ArrowArray array, struct ArrowSchema schema) {
    Output_t output;
    output.id = headrace_text(id);
    output.metadata.open_telemetry_context = headrace_text("");
    output.data_array = array;
    output.schema = schema;
    return send_output->send_output.call(send_output->send_output.env_ptr, output);
}

static inline void headrace_release_array(struct ArrowArray *array) {
    free((void *)array->buffers);
    array->release = NULL;
}

static inline void headrace_release_schema(struct ArrowSchema *schema) { schema->release = NULL; }

/* An array without nulls of one of Arrow's types of fixed width: "C" uint8, "i" int32, "l" int64, "L" uint64,
 * "f" float, "g" double; `width` is the size of a value in bytes. The values are copied. */
static inline DoraResult_t headrace_send_values(const SendOutput_t *send_output, const char *id,
                                                const char *format, const void *values, size_t count,
                                                size_t width) {
    struct ArrowArray array;
    struct ArrowSchema schema;
    const void **block = (const void **)malloc(2 * sizeof(void *) + count * width);
    memset(&array, 0, sizeof array);
    memset(&schema, 0, sizeof schema);
    block[0] = NULL;
    block[1] = block + 2;
    if (count) memcpy((void *)(block + 2), values, count * width);
    array.length = (int64_t)count;
    array.n_buffers = 2;
    array.buffers = block;
    array.release = headrace_release_array;
    schema.format = format;
    schema.name = "";
    schema.release = headrace_release_schema;
    return headrace_send_array(send_output, id, array, schema);
}

/* Send bytes, as an array of type uint8. They are copied. */
static inline DoraResult_t dora_send_operator_output(const SendOutput_t *send_output, const char *id,
                                                     const uint8_t *data, size_t length) {
    return headrace_send_values(send_output, id, "C", data, length, 1);
}

#ifdef __cplusplus
}
#endif

#endif
