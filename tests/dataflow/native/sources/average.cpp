// The mean of all numbers so far, in C++.
#include <numeric>
#include <string>
#include <vector>

#include "headrace_operator.h"

namespace {
class Average {
  public:
    double add(const struct ArrowArray &array) {
        const double *values = static_cast<const double *>(array.buffers[1]) + array.offset;
        numbers.insert(numbers.end(), values, values + array.length);
        return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
    }

  private:
    std::vector<double> numbers;
};
}  // namespace

DoraInitResult_t dora_init_operator() { return {{nullptr}, new Average()}; }

DoraResult_t dora_drop_operator(void *context) {
    delete static_cast<Average *>(context);
    return {nullptr};
}

OnEventResult_t dora_on_event(RawEvent_t *event, const SendOutput_t *send, void *context) {
    if (event->stop) return {{nullptr}, DORA_STATUS_STOP};
    if (event->input == nullptr) return {{nullptr}, DORA_STATUS_CONTINUE};
    if (std::string(headrace_input_schema(event->input)->format) != "g")
        return {headrace_error("expected float64"), DORA_STATUS_CONTINUE};
    double average = static_cast<Average *>(context)->add(*headrace_input_array(event->input));
    return {headrace_send_values(send, "average", "g", &average, 1, sizeof average), DORA_STATUS_CONTINUE};
}
