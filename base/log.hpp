// Log messages for users. The library never prints; it passes lines to the sink of the program.
#pragma once

#include <functional>
#include <string>

namespace sluice {

enum class LogLevel { kDebug, kInfo, kWarning };

// Replaces the sink (thread-safe). The default sink drops everything.
void set_log_sink(std::function<void(LogLevel, const std::string&)> sink);
void log(LogLevel level, const std::string& message);

}  // namespace sluice
