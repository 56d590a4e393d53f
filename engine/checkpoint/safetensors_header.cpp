// The header of a safetensors file: a streaming parser, so that a hostile header of 100 MB costs no
// more memory than the tensors it really names.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.hpp"
#include "engine/checkpoint/safetensors.hpp"

namespace sluice::checkpoint {

namespace {

constexpr std::size_t kMaxRank = 32;
constexpr std::uint64_t kMaxTensorBytes = std::uint64_t{1} << 63;
constexpr std::size_t kMaxShownBytes = 120;

// Names come from the file: one line, bounded, control characters replaced.
std::string shown(std::string_view text) {
  std::string result(text.substr(0, kMaxShownBytes));
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text.size() > kMaxShownBytes ? result + "..." : result;
}

std::optional<DType> dtype_of(std::string_view name) {
  constexpr std::array<DType, 9> types{DType::kF64, DType::kF32, DType::kBF16,
                                       DType::kF16, DType::kI64, DType::kI32,
                                       DType::kI16, DType::kU16, DType::kU8};
  for (const DType type : types) {
    if (dtype_name(type) == name) return type;
  }
  return std::nullopt;
}

// Takes nlohmann's SAX events. `place_` is the place in the header; an unexpected event is refused.
class HeaderHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderHandler(const std::string& file) : file_(file) {}
  SafetensorsHeader take() { return std::move(header_); }

  bool null() override { refuse_value("null"); }
  bool boolean(bool) override { refuse_value("true or false"); }
  bool number_float(number_float_t, const string_t&) override { refuse_value("a fraction"); }
  bool binary(binary_t&) override { refuse_value("binary"); }
  bool number_integer(number_integer_t) override { refuse_value("a negative number"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (tensor_.shape.size() == kMaxRank) fail_tensor("has more than 32 dimensions");
      if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail_tensor("has a dimension above 2^63");
      }
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::kOffsets) {
      if (offset_count_ == 2) fail_tensor("has more than two data_offsets");
      (offset_count_ == 0 ? tensor_.begin_bytes : tensor_.end_bytes) = value;
      ++offset_count_;
    } else {
      refuse_value("a number");
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      if (!header_.metadata.emplace(field_, value).second) {
        fail("__metadata__ has the key '" + shown(field_) + "' twice");
      }
    } else if (place_ == Place::kTensor && field_ == "dtype") {
      const auto dtype = dtype_of(value);
      if (!dtype) fail_tensor("has the unknown dtype '" + shown(value) + "'");
      tensor_.dtype = *dtype;
    } else {
      refuse_value("a string");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot) {
      place_ = field_ == "__metadata__" ? Place::kMetadata : Place::kTensor;
      tensor_ = SafetensorsTensor{};
      tensor_.name = field_;
      has_dtype_ = has_shape_ = has_offsets_ = false;
    } else {
      refuse_value("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (!has_dtype_) fail_tensor("has no dtype");
      if (!has_shape_) fail_tensor("has no shape");
      if (!has_offsets_) fail_tensor("has no data_offsets");
      header_.tensors.push_back(std::move(tensor_));
    }
    // From a tensor or the metadata back to the root; after the root nothing may follow.
    place_ = Place::kRoot;
    return true;
  }

  bool key(string_t& name) override {
    field_ = name;
    if (place_ == Place::kRoot) {
      if (!names_.insert(name).second) fail("the key '" + shown(name) + "' stands twice");
    } else if (place_ == Place::kTensor) {
      bool* seen = name == "dtype"          ? &has_dtype_
                   : name == "shape"        ? &has_shape_
                   : name == "data_offsets" ? &has_offsets_
                                            : nullptr;
      if (seen == nullptr) fail_tensor("has the unknown key '" + shown(name) + "'");
      if (*seen) fail_tensor("has the key '" + name + "' twice");
      *seen = true;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kTensor && field_ == "shape") {
      place_ = Place::kShape;
    } else if (place_ == Place::kTensor && field_ == "data_offsets") {
      place_ = Place::kOffsets;
      offset_count_ = 0;
    } else {
      refuse_value("a list");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offset_count_ != 2) fail_tensor("lacks two data_offsets");
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    fail("not valid JSON at byte " + std::to_string(position));
  }

  [[noreturn]] void fail(const std::string& words) const {
    throw InputError(file_ + ": safetensors header: " + words);
  }

 private:
  enum class Place : std::uint8_t { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets };

  [[noreturn]] void fail_tensor(const std::string& words) const {
    fail("tensor '" + shown(tensor_.name) + "' " + words);
  }
  [[noreturn]] void refuse_value(const std::string& given) const {
    switch (place_) {
      case Place::kStart:
        fail("it must be a JSON object, not " + given);
      case Place::kRoot:
        fail("'" + shown(field_) + "' must be an object, not " + given);
      case Place::kMetadata:
        fail("__metadata__ '" + shown(field_) + "' must be a string, not " + given);
      default:
        fail_tensor("has " + given + " in its " + shown(field_));
    }
  }

  const std::string& file_;
  SafetensorsHeader header_;
  std::unordered_set<std::string> names_;
  Place place_ = Place::kStart;
  std::string field_;  // the last key
  SafetensorsTensor tensor_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offset_count_ = 0;
};

// Sorts by offset and checks that the tensors cover [0, buffer_bytes) exactly.
void check_ranges(SafetensorsHeader& header, std::uint64_t buffer_bytes, const std::string& file) {
  auto& tensors = header.tensors;
  const auto fail = [&](const SafetensorsTensor& tensor, const std::string& words) {
    throw InputError(file + ": tensor '" + shown(tensor.name) + "' " + words);
  };
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin_bytes, a.end_bytes) < std::tie(b.begin_bytes, b.end_bytes);
  });
  std::uint64_t covered = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const std::string range =
        std::to_string(tensor.begin_bytes) + " to " + std::to_string(tensor.end_bytes);
    if (tensor.end_bytes < tensor.begin_bytes || tensor.end_bytes > buffer_bytes) {
      fail(tensor,
           "lies at bytes " + range + " of a buffer of " + std::to_string(buffer_bytes) + " bytes");
    }
    const auto bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes || *bytes != tensor.bytes()) {
      fail(tensor, "has " + std::to_string(tensor.bytes()) +
                       " bytes of data; its shape and dtype " +
                       (bytes ? "need " + std::to_string(*bytes) : "are too large"));
    }
    if (tensor.begin_bytes != covered) {
      fail(tensor,
           std::string(tensor.begin_bytes < covered ? "overlaps another" : "follows a hole") +
               ": it lies at bytes " + range + ", and " + std::to_string(covered) +
               " is where the one before ends");
    }
    covered = tensor.end_bytes;
  }
  if (covered != buffer_bytes) {
    throw InputError(file + ": the tensors cover " + std::to_string(covered) +
                     " bytes, but the file holds " + std::to_string(buffer_bytes) +
                     " bytes of data");
  }
}

}  // namespace

std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape) {
  std::uint64_t bytes = dtype_bytes(dtype);
  for (const std::int64_t dimension : shape) {
    if (dimension < 0 ||
        __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes) ||
        bytes > kMaxTensorBytes) {
      return std::nullopt;
    }
  }
  return bytes;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, std::uint64_t buffer_bytes,
                                           const std::string& file) {
  HeaderHandler handler(file);
  if (!json.starts_with('{')) handler.fail("it must start with '{'");
  nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  SafetensorsHeader header = handler.take();
  check_ranges(header, buffer_bytes, file);
  return header;
}

}  // namespace sluice::checkpoint
