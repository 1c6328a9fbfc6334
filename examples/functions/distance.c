/* The distance between two points of the earth in metres, along a great circle. */
#include <math.h>

#include "headrace_function.h"

static const double RADIUS = 6371008.8;
static const double DEGREE = 3.14159265358979323846 / 180;

int distance(const struct ArrowSchema *types, const struct ArrowArray *columns, struct ArrowSchema *result_type,
             struct ArrowArray *result, char *message)
{
    (void)types;
    const double *given[4];
    for (int i = 0; i < 4; i++)
        given[i] = columns->children[i]->buffers[1];
    double *metres = headrace_fixed(result_type, result, "g", columns->length, sizeof *metres);
    if (metres == NULL)
        return headrace_fail(message, "no memory");
    for (int64_t row = 0; row < columns->length; row++) {
        double lat1 = given[0][row] * DEGREE, lat2 = given[2][row] * DEGREE;
        double across = sin((lat2 - lat1) / 2), along = sin((given[3][row] - given[1][row]) * DEGREE / 2);
        double chord = across * across + cos(lat1) * cos(lat2) * along * along;
        metres[row] = 2 * RADIUS * asin(fmin(1, sqrt(chord)));
    }
    return 0;
}
