/*
 * Functions of SQL in shared libraries.
 *
 *     #include "headrace_function.h"
 *
 *     int twice(const struct ArrowSchema *types, const struct ArrowArray *columns,
 *               struct ArrowSchema *result_type, struct ArrowArray *result, char *message)
 *     {
 *         const int64_t *values = columns->children[0]->buffers[1];
 *         int64_t *doubled = headrace_fixed(result_type, result, "l", columns->length, sizeof *doubled);
 *         if (doubled == NULL)
 *             return headrace_fail(message, "no memory");
 *         for (int64_t row = 0; row < columns->length; row++)
 *             doubled[row] = 2 * values[row];
 *         return 0;
 *     }
 *
 * Build it with
 *
 *     cc -shared -fPIC -O2 -I "$(python -c 'import headrace; print(headrace.get_include())')" -o libtwice.so twice.c
 *
 * and say in SQL
 *
 *     CREATE FUNCTION twice(BIGINT) RETURNS BIGINT LANGUAGE native AS 'libtwice.so', 'twice';
 *
 * A function is called with whole columns, through the Arrow C data interface:
 * https://arrow.apache.org/docs/format/CDataInterface.html
 *
 *   types, columns   a struct with one child for each argument, of the types that SQL declares, and
 *                    `columns->length` rows. They belong to the caller, must not be changed, and are there until
 *                    the function returns. Every `offset` is 0 and every `null_count` is known. Rows in which an
 *                    argument is NULL are left out, unless SQL says CALLED ON NULL INPUT.
 *   result           to be filled with as many values as there are rows, and a `release` callback. The caller
 *                    takes it over.
 *   result_type      to be filled with the type of the result, and a `release` callback, so that a wrong type is an
 *                    error and no misunderstanding; or left alone, if it is the type that SQL declares.
 *   message          HEADRACE_MESSAGE bytes for a text that ends with 0: what went wrong.
 *
 * It returns 0, or any other number if it failed. It may be called from several processes, and again for the same
 * rows; it is called by one thread at a time. It runs in a process of its own: if it crashes, the run ends with an
 * error that says so.
 */
#ifndef HEADRACE_FUNCTION_H
#define HEADRACE_FUNCTION_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

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

#endif /* ARROW_C_DATA_INTERFACE */

#define HEADRACE_MESSAGE 1024

typedef int (*headrace_function)(const struct ArrowSchema *types, const struct ArrowArray *columns,
                                 struct ArrowSchema *result_type, struct ArrowArray *result, char *message);

/* What follows is for convenience: results of the usual types. */

/* Fail with a message. */
static inline int headrace_fail(char *message, const char *text)
{
    snprintf(message, HEADRACE_MESSAGE, "%s", text);
    return 1;
}

/* Whether the value in a row of a column is NULL. */
static inline int headrace_is_null(const struct ArrowArray *column, int64_t row)
{
    const uint8_t *valid = (const uint8_t *)column->buffers[0];
    return valid != NULL && !(valid[row / 8] >> (row % 8) & 1);
}

static inline void headrace_release_type(struct ArrowSchema *type) { type->release = NULL; }

static inline void headrace_release_array(struct ArrowArray *array)
{
    for (int64_t i = 0; i < array->n_buffers; i++)
        free((void *)array->buffers[i]);
    free((void *)array->buffers);
    array->release = NULL;
}

/* A result of `length` values with `n_buffers` buffers of these sizes, all zero; 0 if there is no memory. */
static inline int headrace_result(struct ArrowSchema *type, struct ArrowArray *array, const char *format,
                                  int64_t length, int64_t n_buffers, const size_t *sizes)
{
    const void **buffers = (const void **)calloc((size_t)n_buffers, sizeof *buffers);
    int complete = buffers != NULL;
    for (int64_t i = 0; complete && i < n_buffers; i++) {
        buffers[i] = sizes[i] ? calloc(1, sizes[i]) : NULL;
        complete = buffers[i] != NULL || sizes[i] == 0;
    }
    memset(type, 0, sizeof *type);
    memset(array, 0, sizeof *array);
    array->length = length;
    array->n_buffers = n_buffers;
    array->buffers = buffers;
    if (!complete) {
        if (buffers != NULL)
            headrace_release_array(array);
        return 0;
    }
    array->release = headrace_release_array;
    type->format = format;
    type->name = "";
    type->flags = ARROW_FLAG_NULLABLE;
    type->release = headrace_release_type;
    return 1;
}

/*
 * A result of values that take `width` bytes each: "c", "s", "i", "l" for signed integers of 1, 2, 4 and 8 bytes, "C",
 * "S", "I", "L" for unsigned ones, "f" and "g" for FLOAT and DOUBLE, "tsn:" for TIMESTAMP. Returns where the values
 * go; NULL if there is no memory.
 */
static inline void *headrace_fixed(struct ArrowSchema *type, struct ArrowArray *array, const char *format,
                                   int64_t length, size_t width)
{
    size_t sizes[2] = {0, (size_t)(length ? length : 1) * width};
    return headrace_result(type, array, format, length, 2, sizes) ? (void *)array->buffers[1] : NULL;
}

/*
 * A result of texts ("u") or of bytes ("z") of `bytes` bytes in all. `offsets` is set to where the end of each goes:
 * text number `row` has the bytes from offsets[row], the first of which is 0, to offsets[row + 1]. Returns where the
 * bytes go; NULL if there is no memory.
 */
static inline char *headrace_texts(struct ArrowSchema *type, struct ArrowArray *array, const char *format,
                                   int64_t length, size_t bytes, int32_t **offsets)
{
    size_t sizes[3] = {0, (size_t)(length + 1) * sizeof(int32_t), bytes ? bytes : 1};
    if (!headrace_result(type, array, format, length, 3, sizes))
        return NULL;
    *offsets = (int32_t *)array->buffers[1];
    return (char *)array->buffers[2];
}

/* Make the value in a row of the result NULL; returns 0 if there is no memory. */
static inline int headrace_set_null(struct ArrowArray *array, int64_t row)
{
    uint8_t *valid = (uint8_t *)array->buffers[0];
    if (valid == NULL) {
        size_t size = (size_t)(array->length / 8 + 1);
        valid = (uint8_t *)malloc(size);
        if (valid == NULL)
            return 0;
        memset(valid, 0xff, size);
        array->buffers[0] = valid;
    }
    if (valid[row / 8] >> (row % 8) & 1) {
        valid[row / 8] = (uint8_t)(valid[row / 8] & ~(1u << (row % 8)));
        array->null_count++;
    }
    return 1;
}

#ifdef __cplusplus
}
#endif

#endif /* HEADRACE_FUNCTION_H */
