// Writes plain data as a pickle of protocol 4. It uses only instructions that both Python and the
// viewer of PyTorch's snapshots (torch/utils/viz/MemoryViz.js) know.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sluice::record {

// A pickle is one value: a scalar, or a container between its begin and its end. Inside a dict,
// keys and values take turns. finish() ends the pickle. A string that comes twice is stored once.
// Calls out of order are programmer errors (InternalError).
class PickleWriter {
 public:
  // `sink` receives the bytes in order, some 64 KiB at a time.
  explicit PickleWriter(std::function<void(std::string_view)> sink);

  void none();
  void boolean(bool value);
  void integer(std::int64_t value);
  void real(double value);
  void text(std::string_view value);  // UTF-8, below 4 GiB
  void begin_list();
  void end_list();
  void begin_dict();
  void end_dict();
  void pair_of(std::int64_t first, std::int64_t second);  // a tuple of two
  // Stores the value just written. recall() writes it again as a shared value.
  std::uint32_t remember();
  void recall(std::uint32_t memo);
  void finish();

 private:
  struct Open {
    bool is_dict;
    std::uint64_t count;  // keys and values counted alike
  };
  void begin_value();
  void end_container(bool is_dict);
  void little_endian(std::uint64_t value, std::size_t bytes);
  void flush_frame();

  std::function<void(std::string_view)> sink_;
  std::string frame_;
  std::vector<Open> open_;
  std::unordered_map<std::string, std::uint32_t> texts_;
  std::uint32_t memo_count_ = 0;
  bool has_root_ = false;
};

}  // namespace sluice::record
