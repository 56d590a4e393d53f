// A variable of the environment with another value while an object lives.
#pragma once

#include <stdlib.h>

#include <optional>
#include <string>
#include <utility>

namespace sluice::testing {

class SetVariable {
 public:
  SetVariable(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* const before = ::getenv(name_.c_str())) before_ = before;
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~SetVariable() {
    before_ ? ::setenv(name_.c_str(), before_->c_str(), 1) : ::unsetenv(name_.c_str());
  }
  SetVariable(const SetVariable&) = delete;
  SetVariable& operator=(const SetVariable&) = delete;

  // The value before; empty where there was none.
  std::string before() const { return before_.value_or(""); }

 private:
  std::string name_;
  std::optional<std::string> before_;
};

}  // namespace sluice::testing
