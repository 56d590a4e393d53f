// Linear programs of a few dozen rows: minimise c x, so that A x <= b and x >= 0.
#pragma once

#include <optional>
#include <vector>

namespace sluice::planner {

class LinearProgram {
 public:
  // Columns are variables; each has this cost in the objective.
  explicit LinearProgram(std::vector<double> costs) : costs_(std::move(costs)) {}

  // Adds the row sum of coefficients[j] * x[j] <= limit. Missing coefficients count as 0.
  void at_most(std::vector<double> coefficients, double limit);
  // The same with ">=" and "=".
  void at_least(std::vector<double> coefficients, double limit);
  void equals(const std::vector<double>& coefficients, double value);

  struct Solution {
    double cost = 0;
    std::vector<double> x;
  };
  // Nothing if no x satisfies all rows. Precondition: the minimum is bounded (InternalError).
  std::optional<Solution> minimum() const;

 private:
  struct Row {
    std::vector<double> coefficients;
    double limit = 0;
  };
  std::vector<double> costs_;
  std::vector<Row> rows_;
};

}  // namespace sluice::planner
