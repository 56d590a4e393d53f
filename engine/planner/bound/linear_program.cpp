// The simplex method in two phases on a dense table (Chvátal, Linear Programming, 1983, chapters 2
// and 3). A library would bring thousands of lines for programs of at most 20 columns and 40 rows.
//
// Every row gets a slack variable. The first phase adds one artificial variable to rows with a
// negative limit and drives it to zero; the second phase minimises the true costs. Pivots follow
// Bland's rule, which cannot cycle.
#include "engine/planner/bound/linear_program.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/error.hpp"

namespace sluice::planner {
namespace {

// Of costs, which callers choose near one, and of the coefficients of rows whose largest is near one.
constexpr double kTiny = 1e-9;

// The power of two that brings the largest coefficient of a row to between 1 and 2; a row of 0 stays.
// Exact, so that a row in bytes and one in budgets are the same row.
double scale_of(const std::vector<double>& coefficients) {
  double largest = 0;
  for (const double coefficient : coefficients) largest = std::max(largest, std::abs(coefficient));
  return largest > 0 ? std::ldexp(1.0, -std::ilogb(largest)) : 1;
}

class Tableau {
 public:
  // One line per row: all columns, then the limit. basis: the basic column of each line.
  std::vector<std::vector<double>> lines;
  std::vector<std::size_t> basis;
  std::vector<double>
      reduced;  // costs in terms of the columns that are not basic; last: minus cost

  void pivot(std::size_t line, std::size_t column) {
    std::vector<double>& pivot_line = lines[line];
    const double by = pivot_line[column];
    for (double& value : pivot_line) value /= by;
    for (std::size_t other = 0; other < lines.size(); ++other) {
      if (other != line) subtract(lines[other], pivot_line, column);
    }
    subtract(reduced, pivot_line, column);
    basis[line] = column;
  }

  // Pivots until no cost among the first `columns` is negative.
  void minimise(std::size_t columns) {
    while (true) {
      std::size_t entering = 0;
      while (entering < columns && reduced[entering] > -kTiny) ++entering;
      if (entering == columns) return;
      const std::size_t leaving = leaving_line(entering);
      SLUICE_CHECK_MSG(leaving < lines.size(), "a linear program without a minimum");
      pivot(leaving, entering);
    }
  }

  void set_costs(const std::vector<double>& costs) {
    reduced.assign(lines.front().size(), 0.0);
    std::copy(costs.begin(), costs.end(), reduced.begin());
    for (std::size_t line = 0; line < lines.size(); ++line) {
      if (basis[line] < costs.size()) subtract(reduced, lines[line], basis[line]);
    }
  }

 private:
  static void subtract(std::vector<double>& from, const std::vector<double>& line,
                       std::size_t column) {
    const double times = from[column];
    if (times == 0) return;
    for (std::size_t i = 0; i < from.size(); ++i) from[i] -= times * line[i];
    from[column] = 0;
  }

  // The line whose limit bounds the entering column most; the least basic column among equals.
  std::size_t leaving_line(std::size_t entering) const {
    std::size_t best = lines.size();
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t line = 0; line < lines.size(); ++line) {
      if (lines[line][entering] <= kTiny) continue;
      const double ratio = lines[line].back() / lines[line][entering];
      const bool tie = best < lines.size() && std::abs(ratio - least) <= kTiny;
      if (tie ? basis[line] < basis[best] : ratio < least) {
        best = line;
        least = std::min(least, ratio);
      }
    }
    return best;
  }
};

}  // namespace

void LinearProgram::at_most(std::vector<double> coefficients, double limit) {
  SLUICE_CHECK(coefficients.size() <= costs_.size());
  coefficients.resize(costs_.size());
  rows_.push_back({std::move(coefficients), limit});
}

void LinearProgram::at_least(std::vector<double> coefficients, double limit) {
  for (double& coefficient : coefficients) coefficient = -coefficient;
  at_most(std::move(coefficients), -limit);
}

void LinearProgram::equals(const std::vector<double>& coefficients, double value) {
  at_most(coefficients, value);
  at_least(coefficients, value);
}

std::optional<LinearProgram::Solution> LinearProgram::minimum() const {
  const std::size_t variables = costs_.size();
  const std::size_t artificial = variables + rows_.size();
  Tableau table;
  std::size_t lowest = 0;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    std::vector<double> line = rows_[row].coefficients;
    const double scale = scale_of(line);
    for (double& coefficient : line) coefficient *= scale;
    line.resize(artificial + 2);
    line[variables + row] = 1;
    line[artificial] = -1;
    line.back() = rows_[row].limit * scale;
    table.lines.push_back(std::move(line));
    table.basis.push_back(variables + row);
    if (table.lines[row].back() < table.lines[lowest].back()) lowest = row;
  }
  if (table.lines[lowest].back() < 0) {
    std::vector<double> only_artificial(artificial + 1);
    only_artificial.back() = 1;
    table.set_costs(only_artificial);
    table.pivot(lowest, artificial);
    table.minimise(artificial);
    if (-table.reduced.back() > kTiny * 10) return std::nullopt;
    const auto left = std::find(table.basis.begin(), table.basis.end(), artificial);
    if (left != table.basis.end()) {
      const auto line = static_cast<std::size_t>(left - table.basis.begin());
      // The largest, since a small one magnifies the errors of the other lines.
      const auto first = table.lines[line].begin();
      const auto largest =
          std::max_element(first, first + static_cast<std::ptrdiff_t>(artificial),
                           [](double a, double b) { return std::abs(a) < std::abs(b); });
      if (std::abs(*largest) > kTiny) {
        table.pivot(line, static_cast<std::size_t>(largest - first));
      }
    }
  }
  for (std::vector<double>& line : table.lines) line[artificial] = 0;
  table.set_costs(costs_);
  table.minimise(artificial);
  Solution solution;
  solution.cost = -table.reduced.back();
  solution.x.assign(variables, 0.0);
  for (std::size_t line = 0; line < table.lines.size(); ++line) {
    if (table.basis[line] < variables) solution.x[table.basis[line]] = table.lines[line].back();
  }
  return solution;
}

}  // namespace sluice::planner
