/* Counts ticks, and remembers the count: it is saved with each epoch and restored after a crash. */
#include "headrace_operator.h"

DoraInitResult_t dora_init_operator(void) {
    DoraInitResult_t made = {{NULL}, calloc(1, sizeof(uint64_t))};
    return made;
}

OnEventResult_t dora_on_event(RawEvent_t *event, const SendOutput_t *send_output, void *operator_context) {
    OnEventResult_t handled = {{NULL}, DORA_STATUS_CONTINUE};
    uint64_t *count = (uint64_t *)operator_context;
    if (event->input != NULL && headrace_input_is(event->input, "tick")) {
        *count += 1;
        handled.result = headrace_send_values(send_output, "count", "L", count, 1, sizeof *count);
    }
    return handled;
}

DoraResult_t dora_drop_operator(void *operator_context) {
    DoraResult_t dropped = {NULL};
    free(operator_context);
    return dropped;
}

DoraResult_t headrace_snapshot_operator(void *operator_context, void *sink, headrace_write_t write) {
    DoraResult_t saved = {NULL};
    write(sink, (const uint8_t *)operator_context, sizeof(uint64_t));
    return saved;
}

DoraInitResult_t headrace_restore_operator(const uint8_t *bytes, size_t length) {
    DoraInitResult_t made = dora_init_operator();
    if (length == sizeof(uint64_t))
        memcpy(made.operator_context, bytes, length);
    else
        made.result = headrace_error("expected the 8 bytes of a count");
    return made;
}
