/* Does what the name of the input says. */
#include <stdio.h>

#include "headrace_operator.h"

struct memory {
    uint64_t events;
    bool stubborn;
    SendOutput_t kept;
};

static DoraResult_t say(const SendOutput_t *send, const char *what, Vec_uint8_t text) {
    char line[200];
    int length = snprintf(line, sizeof line, "%s%.*s", what, (int)text.len, (const char *)text.ptr);
    return dora_send_operator_output(send, "said", (const uint8_t *)line, (size_t)length);
}

/* The type of an input is the caller's to release; who takes it leaves no release behind. */
static DoraResult_t echo(Input_t *input, const SendOutput_t *send) {
    struct ArrowSchema schema = input->schema;
    input->schema.release = NULL;
    return headrace_send_array(send, "out", headrace_take_array(input), schema);
}

static DoraResult_t bytes(Input_t *input, const SendOutput_t *send) {
    char *id = dora_read_input_id(input);
    Vec_uint8_t data = dora_read_data(input);
    DoraResult_t result;
    if (data.ptr == NULL) {
        result = headrace_error("expected bytes");
    } else if (headrace_input_array(input) != NULL || dora_read_data(input).ptr != NULL) {
        result = headrace_error("the data was there twice");
    } else if (strcmp(id, "bytes") != 0) {
        result = headrace_error(id);
    } else {
        result = dora_send_operator_output(send, "out", data.ptr, data.len);
    }
    dora_free_data(data);
    dora_free_input_id(id);
    return result;
}

static DoraResult_t sum(Input_t *input, const SendOutput_t *send) {
    const struct ArrowArray *array = headrace_input_array(input);
    int64_t total = 0;
    if (strcmp(headrace_input_schema(input)->format, "l") != 0) return headrace_error("expected int64");
    for (int64_t i = 0; i < array->length; i++) total += ((const int64_t *)array->buffers[1])[array->offset + i];
    return headrace_send_values(send, "out", "l", &total, 1, sizeof total);
}

static DoraResult_t unreadable(const SendOutput_t *send) {
    return headrace_send_values(send, "out", "no such format", "12345678", 1, 8);
}

static DoraResult_t traced(const Input_t *input, const SendOutput_t *send) {
    Vec_uint8_t context = input->metadata.open_telemetry_context;
    Output_t output;
    output.id = headrace_text("out");
    output.metadata.open_telemetry_context = context;
    output.metadata.open_telemetry_context.ptr = malloc(context.len + 1);
    output.metadata.open_telemetry_context.cap = context.len + 1;
    memcpy(output.metadata.open_telemetry_context.ptr, context.ptr, context.len);
    memset(&output.data_array, 0, sizeof output.data_array);
    memset(&output.schema, 0, sizeof output.schema);
    output.data_array.release = headrace_release_array;
    output.schema.format = "n";
    output.schema.release = headrace_release_schema;
    return send->send_output.call(send->send_output.env_ptr, output);
}

DoraInitResult_t dora_init_operator(void) {
    DoraInitResult_t made = {{NULL}, NULL};
    if (getenv("CANNOT_START"))
        made.result = headrace_error("no camera is connected");
    else
        made.operator_context = calloc(1, sizeof(struct memory));
    return made;
}

OnEventResult_t dora_on_event(RawEvent_t *event, const SendOutput_t *send, void *context) {
    struct memory *memory = context;
    Input_t *input = event->input;
    OnEventResult_t handled = {{NULL}, DORA_STATUS_CONTINUE};
    memory->events += 1;
    if (event->input_closed.ptr != NULL) {
        handled.result = say(send, "closed ", event->input_closed);
    } else if (event->stop) {
        Vec_uint8_t nothing = {NULL, 0, 0};
        handled.result = say(send, "stop", nothing);
    } else if (event->error.ptr != NULL) {
        handled.result = say(send, "error ", event->error);
    } else if (headrace_input_is(input, "echo")) {
        handled.result = echo(input, send);
    } else if (headrace_input_is(input, "bytes")) {
        handled.result = bytes(input, send);
    } else if (headrace_input_is(input, "sum")) {
        handled.result = sum(input, send);
    } else if (headrace_input_is(input, "twice")) {
        handled.result = say(send, "one", input->metadata.open_telemetry_context);
        if (!handled.result.error) handled.result = say(send, "two", input->metadata.open_telemetry_context);
    } else if (headrace_input_is(input, "traced")) {
        handled.result = traced(input, send);
    } else if (headrace_input_is(input, "unreadable")) {
        handled.result = unreadable(send);
    } else if (headrace_input_is(input, "undeclared")) {
        handled.result = dora_send_operator_output(send, "nowhere", NULL, 0);
    } else if (headrace_input_is(input, "careless")) {
        headrace_free_error(dora_send_operator_output(send, "nowhere", NULL, 0));
    } else if (headrace_input_is(input, "fail")) {
        handled.result = headrace_error("the disk is full");
    } else if (headrace_input_is(input, "fail silently")) {
        handled.result = headrace_error("");
    } else if (headrace_input_is(input, "stop")) {
        handled.status = DORA_STATUS_STOP;
    } else if (headrace_input_is(input, "stop all")) {
        handled.status = DORA_STATUS_STOP_ALL;
    } else if (headrace_input_is(input, "strange")) {
        handled.status = 7;
    } else if (headrace_input_is(input, "stubborn")) {
        memory->stubborn = true;
    } else if (headrace_input_is(input, "keep")) {
        memory->kept = *send;
        send->send_output.retain(send->send_output.env_ptr);
    } else if (headrace_input_is(input, "abort")) {
        abort();
    } else if (headrace_input_is(input, "segfault")) {
        *(volatile int *)8 = 1;
    }
    return handled;
}

DoraResult_t dora_drop_operator(void *context) {
    bool stubborn = ((struct memory *)context)->stubborn;
    DoraResult_t dropped = {NULL};
    free(context);
    return stubborn ? headrace_error("the motor does not stop") : dropped;
}

DoraResult_t headrace_snapshot_operator(void *context, void *sink, headrace_write_t write) {
    struct memory *memory = context;
    DoraResult_t saved = {NULL};
    char digits[30];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)memory->events);
    if (memory->stubborn) return headrace_error("cannot be saved while the motor runs");
    if (memory->kept.send_output.call) return dora_send_operator_output(&memory->kept, "out", NULL, 0);
    write(sink, (const uint8_t *)"events ", 7);
    write(sink, NULL, 0);
    write(sink, (const uint8_t *)digits, (size_t)length);
    return saved;
}

DoraInitResult_t headrace_restore_operator(const uint8_t *state, size_t length) {
    DoraInitResult_t made = dora_init_operator();
    char text[40] = {0};
    unsigned long long events = 0;
    memcpy(text, state, length < 39 ? length : 39);
    if (sscanf(text, "events %llu", &events) == 1)
        ((struct memory *)made.operator_context)->events = events;
    else
        made.result = headrace_error("expected `events` and a number");
    return made;
}
