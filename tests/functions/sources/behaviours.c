/* Functions that do what they should, and functions that do everything else. */
#include <signal.h>

#include "headrace_function.h"

#define FUNCTION(name)                                                                                              \
    int name(const struct ArrowSchema *types, const struct ArrowArray *columns, struct ArrowSchema *result_type,    \
             struct ArrowArray *result, char *message)
#define UNUSED (void)types, (void)columns, (void)result_type, (void)result, (void)message

FUNCTION(add)
{
    (void)types;
    const int64_t *a = columns->children[0]->buffers[1], *b = columns->children[1]->buffers[1];
    int64_t *sum = headrace_fixed(result_type, result, "l", columns->length, sizeof *sum);
    if (sum == NULL)
        return headrace_fail(message, "no memory");
    for (int64_t row = 0; row < columns->length; row++)
        sum[row] = a[row] + b[row];
    return 0;
}

/* The text twice; NULL for an empty one, "none" for NULL. */
FUNCTION(echo)
{
    (void)types;
    const struct ArrowArray *texts = columns->children[0];
    const int32_t *ends = texts->buffers[1];
    const char *bytes = texts->buffers[2];
    int32_t *offsets;
    size_t most = 2 * (size_t)(ends[texts->length] - ends[0]) + 4 * (size_t)texts->length;
    char *made = headrace_texts(result_type, result, "u", columns->length, most, &offsets);
    if (made == NULL)
        return headrace_fail(message, "no memory");
    int32_t end = 0;
    for (int64_t row = 0; row < columns->length; row++) {
        int32_t length = ends[row + 1] - ends[row];
        if (headrace_is_null(texts, row)) {
            memcpy(made + end, "none", 4);
            end += 4;
        } else if (length == 0) {
            if (!headrace_set_null(result, row))
                return headrace_fail(message, "no memory");
        } else {
            memcpy(made + end, bytes + ends[row], (size_t)length);
            memcpy(made + end + length, bytes + ends[row], (size_t)length);
            end += 2 * length;
        }
        offsets[row + 1] = end;
    }
    return 0;
}

FUNCTION(only_below_100)
{
    const int64_t *values = columns->children[0]->buffers[1];
    for (int64_t row = 0; row < columns->length; row++)
        if (values[row] >= 100)
            return headrace_fail(message, "it is too large");
    return add(types, columns, result_type, result, message);
}

FUNCTION(fails_silently)
{
    UNUSED;
    return 42;
}

FUNCTION(gives_nothing)
{
    UNUSED;
    return 0;
}

FUNCTION(gives_one)
{
    (void)types, (void)columns;
    return headrace_fixed(result_type, result, "l", 1, 8) == NULL ? headrace_fail(message, "no memory") : 0;
}

FUNCTION(gives_doubles)
{
    (void)types;
    return headrace_fixed(result_type, result, "g", columns->length, 8) == NULL
               ? headrace_fail(message, "no memory")
               : 0;
}

FUNCTION(gives_bad_texts)
{
    (void)types;
    int32_t *offsets;
    if (headrace_texts(result_type, result, "u", columns->length, 8, &offsets) == NULL)
        return headrace_fail(message, "no memory");
    for (int64_t row = 0; row < columns->length; row++)
        offsets[row + 1] = -5;
    return 0;
}

FUNCTION(gives_odd_type)
{
    add(types, columns, result_type, result, message);
    result_type->format = "what?";
    return 0;
}

/* Leaves the type alone: it is the declared one. */
FUNCTION(trusts)
{
    (void)result_type;
    struct ArrowSchema ignored;
    return add(types, columns, &ignored, result, message);
}

FUNCTION(crashes_at_7)
{
    const int64_t *values = columns->children[0]->buffers[1];
    for (int64_t row = 0; row < columns->length; row++)
        if (values[row] == 7)
            raise(SIGSEGV);
    return add(types, columns, result_type, result, message);
}

FUNCTION(exits)
{
    UNUSED;
    exit(3);
}

FUNCTION(prints)
{
    printf("native functions may print\n");
    fflush(stdout);
    return add(types, columns, result_type, result, message);
}
