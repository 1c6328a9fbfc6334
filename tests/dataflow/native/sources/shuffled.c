/* An operator with dora's own functions for inputs and outputs, whose layout is what the environment says:
 * INPUT_ORDER and OUTPUT_ORDER are the parts' letters (array, id, context, schema), or `?` for nonsense.
 * It is as strict as Rust: a pointer that is none, or a mark that is neither 0 nor 1, ends the process. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint8_t *ptr; size_t len, cap; } Vec;
typedef struct { uint64_t words[25]; } Output;
typedef struct { void *env; void *(*call)(void *, Output); void (*release)(void *), (*retain)(void *); } Send;
typedef struct { void *error, *context; } Made;
typedef struct { void *error; uint8_t status; } Handled;

static size_t place(const char *variable, char part) {
    size_t words = 0;
    const char *order = getenv(variable);
    for (; *order && *order != part; order++)
        words += *order == 'a' ? (strcmp(variable, "INPUT_ORDER") ? 10 : 11) : *order == 's' ? 9 : 3;
    return words;
}

static void check(int holds) {
    if (!holds) abort();
}

char *dora_read_input_id(const uint64_t *input) {
    if (*getenv("INPUT_ORDER") == '?') return strdup("nonsense");
    Vec id;
    memcpy(&id, input + place("INPUT_ORDER", 'i'), sizeof id);
    check(id.ptr != NULL && id.len < 1000);
    return id.len ? strndup((char *)id.ptr, id.len) : strdup("");
}

void dora_free_input_id(char *id) { free(id); }

Vec dora_read_data(uint64_t *input) {
    Vec data = {NULL, 0, 0};
    uint64_t *mark = input + place("INPUT_ORDER", 'a'), *array = mark + 1;
    const char *format = (const char *)input[place("INPUT_ORDER", 's')];
    check(*mark < 2);
    if (!*mark) return data;
    *mark = 0;
    check(format != NULL);
    check(array[3] == 2);
    if (!strcmp(format, "C")) {
        data.len = data.cap = array[0];
        data.ptr = malloc(data.len + 1);
        memcpy(data.ptr, ((uint8_t **)array[5])[1] + array[2], data.len);
    }
    if (array[8]) ((void (*)(uint64_t *))array[8])(array);
    return data;
}

static void release_array(uint64_t *array) {
    free((void *)array[5]);
    array[8] = 0;
}

static void release_schema(uint64_t *schema) { schema[7] = 0; }

void *dora_send_operator_output(const Send *send, const char *id, const uint8_t *data, size_t length) {
    Output output;
    memset(&output, 0, sizeof output);
    if (*getenv("OUTPUT_ORDER") == '?') return send->call(send->env, output);
    uint64_t *array = output.words + place("OUTPUT_ORDER", 'a'), *schema = output.words + place("OUTPUT_ORDER", 's');
    Vec text = {(uint8_t *)strdup(id), strlen(id), strlen(id) + 1}, nothing = {(uint8_t *)1, 0, 0};
    void **buffers = malloc(2 * sizeof *buffers + length);
    buffers[0] = NULL;
    buffers[1] = buffers + 2;
    memcpy(buffers[1], data, length);
    memcpy(output.words + place("OUTPUT_ORDER", 'i'), &text, sizeof text);
    memcpy(output.words + place("OUTPUT_ORDER", 'c'), &nothing, sizeof nothing);
    array[0] = length;
    array[3] = 2;
    array[5] = (uint64_t)buffers;
    array[8] = (uint64_t)release_array;
    schema[0] = (uint64_t) "C";
    schema[7] = (uint64_t)release_schema;
    return send->call(send->env, output);
}

Made dora_init_operator(void) { return (Made){NULL, NULL}; }

void *dora_drop_operator(void *context) {
    (void)context;
    return NULL;
}

Handled dora_on_event(uint64_t **event, const Send *send, void *context) {
    Handled handled = {context, 0};
    char *id = dora_read_input_id(event[0]);
    Vec data = dora_read_data(event[0]);
    handled.error = dora_send_operator_output(send, id, data.ptr, data.len);
    free(data.ptr);
    free(id);
    return handled;
}
