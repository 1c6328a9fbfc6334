/* An operator that leaves inputs and outputs to the functions of dora's C library. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct { uint8_t *ptr; size_t len, cap; } Vec;
typedef struct Input Input;
typedef struct Send Send;
typedef struct { Vec *error; } Result;
typedef struct { Result result; void *context; } Made;
typedef struct { Result result; uint8_t status; } Handled;
typedef struct { Input *input; Vec input_closed; bool stop; Vec error; } Event;

char *dora_read_input_id(const Input *);
void dora_free_input_id(char *);
Vec dora_read_data(Input *);
void dora_free_data(Vec);
Result dora_send_operator_output(const Send *, const char *, const uint8_t *, size_t);

Made dora_init_operator(void) { return (Made){{NULL}, NULL}; }

Result dora_drop_operator(void *context) {
    (void)context;
    return (Result){NULL};
}

Handled dora_on_event(Event *event, const Send *send, void *context) {
    Handled handled = {{context}, 0};
    if (event->input) {
        char *id = dora_read_input_id(event->input);
        Vec data = dora_read_data(event->input);
        if (data.ptr) {
            handled.result = dora_send_operator_output(send, id, data.ptr, data.len);
            dora_free_data(data);
        }
        dora_free_input_id(id);
    }
    return handled;
}
