#include "engine/checkpoint/safetensors.hpp"

#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/open_beneath.hpp"
#include "base/units.hpp"

namespace sluice::checkpoint {

namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's bound

static_assert(std::endian::native == std::endian::little, "tensor data is little-endian");

// Links are not followed, because a checkpoint's manifest vouches for the file itself. The reader
// reports a file that is shorter than its header says as bad input, not as a fault.
PosixFile open_input(const std::string& path) {
  try {
    return PosixFile::open_read_beneath(directory_of(path), name_of(path));
  } catch (const IoError& error) {
    throw InputError(path + " cannot be opened as a safetensors file: " + error.what());
  }
}

// The u64 length, then the JSON, padded with spaces so that the buffer starts at a multiple of 64.
std::string header_text(const nlohmann::ordered_json& header) {
  std::string json = header.dump();
  json.resize(round_up(kLengthBytes + json.size(), 64) - kLengthBytes, ' ');
  SLUICE_CHECK_MSG(json.size() <= kMaxHeaderBytes, "too many tensors for one safetensors file");
  const std::uint64_t length = json.size();
  std::string text(kLengthBytes, '\0');
  std::memcpy(text.data(), &length, kLengthBytes);
  return text + json;
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path) : file_(open_input(path)) {
  const std::uint64_t file_bytes = file_.size_bytes();
  std::uint64_t header_bytes = 0;
  if (file_bytes < kLengthBytes) {
    throw InputError(path + " has " + std::to_string(file_bytes) +
                     " bytes, too few for a safetensors file");
  }
  file_.read_exact(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - kLengthBytes) {
    throw InputError(path + ": the safetensors header is said to have " +
                     std::to_string(header_bytes) + " bytes, but the file has " +
                     std::to_string(file_bytes) + " and a header at most " +
                     std::to_string(kMaxHeaderBytes));
  }
  std::string json(header_bytes, '\0');
  file_.read_exact(kLengthBytes, std::as_writable_bytes(std::span(json)));
  buffer_offset_ = kLengthBytes + header_bytes;
  header_ = parse_safetensors_header(json, file_bytes - buffer_offset_, path);
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
}

const SafetensorsTensor* SafetensorsReader::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

void SafetensorsReader::read(const SafetensorsTensor& tensor, std::uint64_t offset_bytes,
                             std::span<std::byte> into) const {
  SLUICE_CHECK(offset_bytes <= tensor.bytes() && into.size() <= tensor.bytes() - offset_bytes);
  file_.read_exact(buffer_offset_ + tensor.begin_bytes + offset_bytes, into);
}

SafetensorsLayout safetensors_layout(const std::vector<SafetensorsSpec>& specs,
                                     const std::map<std::string, std::string>& metadata) {
  SafetensorsLayout layout;
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const SafetensorsSpec& spec : specs) {
    SLUICE_CHECK_MSG(!header.contains(spec.name) && spec.name != "__metadata__",
                     "tensor name '" + spec.name + "' cannot be written twice");
    const auto bytes = tensor_bytes(spec.dtype, spec.shape);
    SLUICE_CHECK_MSG(bytes.has_value(), "tensor '" + spec.name + "' is too large");
    header[spec.name] = {{"dtype", dtype_name(spec.dtype)},
                         {"shape", spec.shape},
                         {"data_offsets", {offset, offset + *bytes}}};
    layout.tensors.push_back({offset, offset + *bytes});
    offset += *bytes;
  }
  layout.header = header_text(header);
  for (SafetensorsLayout::Range& range : layout.tensors) {
    range.begin_bytes += layout.header.size();
    range.end_bytes += layout.header.size();
  }
  return layout;
}

std::uint64_t safetensors_bytes(const std::vector<SafetensorsSpec>& specs,
                                const std::map<std::string, std::string>& metadata) {
  const SafetensorsLayout layout = safetensors_layout(specs, metadata);
  return layout.tensors.empty() ? layout.header.size() : layout.tensors.back().end_bytes;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::vector<SafetensorsSpec>& specs,
                                     const std::map<std::string, std::string>& metadata)
    : file_(PosixFile::create(path)),
      specs_(specs),
      layout_(safetensors_layout(specs, metadata)),
      written_bytes_(specs.size(), 0) {
  file_.write_all(0, std::as_bytes(std::span(layout_.header)));
}

SafetensorsWriter::~SafetensorsWriter() {
  // Nothing can be done about a leftover that cannot be removed; its name is a temporary one.
  if (!finished_) static_cast<void>(::unlink(file_.path().c_str()));
}

void SafetensorsWriter::append(std::size_t tensor, std::span<const std::byte> from) {
  const SafetensorsLayout::Range& range = layout_.tensors.at(tensor);
  std::uint64_t& written = written_bytes_[tensor];
  SLUICE_CHECK_MSG(from.size() <= range.bytes() - written,
                   "tensor '" + specs_[tensor].name + "' got more bytes than it has");
  file_.write_all(range.begin_bytes + written, from);
  written += from.size();
}

void SafetensorsWriter::finish() {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    SLUICE_CHECK_MSG(written_bytes_[i] == layout_.tensors[i].bytes(),
                     "tensor '" + specs_[i].name + "' is not whole");
  }
  file_.sync();
  finished_ = true;
}

}  // namespace sluice::checkpoint
