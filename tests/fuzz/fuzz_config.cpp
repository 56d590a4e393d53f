// Any TOML and any overrides give an InputError, or a resolved configuration that reads back from
// its dump. The input is the file's text; after its first NUL, if it has one, come overrides
// separated by NULs.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "engine/config/config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> parts;
  for (;;) {
    const auto end = input.find('\0');
    parts.emplace_back(input.substr(0, end));
    if (end == std::string_view::npos) break;
    input.remove_prefix(end + 1);
  }
  const std::string text = parts.front();
  parts.erase(parts.begin());
  try {
    const sluice::config::Config config = sluice::config::parse_config(text, "fuzz.toml", parts);
    const std::string dump = sluice::config::config_to_toml(config);
    const sluice::config::Config again = sluice::config::parse_config(dump, "dump.toml");
    if (sluice::config::config_to_toml(again) != dump) __builtin_trap();
    if (sluice::config::result_settings(again) != sluice::config::result_settings(config))
      __builtin_trap();
    sluice::config::check_supported(config);
  } catch (const sluice::InputError&) {
  }
  return 0;
}
