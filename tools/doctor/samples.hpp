// One figure, measured again and again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/error.hpp"

namespace sluice::doctor {

class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  // A disturbance of the machine lasts for seconds: the median of samples spread over more is free
  // of it. The upper of the middle two. At least one sample.
  double median() const {
    SLUICE_CHECK(!values_.empty());
    std::vector<double> values = values_;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }
  std::size_t count() const { return values_.size(); }

 private:
  std::vector<double> values_;
};

}  // namespace sluice::doctor
