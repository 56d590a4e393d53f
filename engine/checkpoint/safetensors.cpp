#include "engine/checkpoint/safetensors.hpp"

#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "base/open_beneath.hpp"
#include "base/units.hpp"
#include "offload/integrity_error.hpp"

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

constexpr std::string_view kNoDigest = "00000000000000000000000000000000";

// The place of the digest in a header whose metadata have one; npos if they do not. The writer
// makes it the first member, and no name of a tensor stands before the metadata.
std::size_t digest_place(std::string_view header) {
  const std::string before = std::string("{\"__metadata__\":{\"") + kDigestMember + "\":\"";
  const std::size_t start = header.find('{');
  if (start == std::string_view::npos || header.substr(start, before.size()) != before) {
    return std::string_view::npos;
  }
  const std::size_t place = start + before.size();
  return place + kNoDigest.size() < header.size() ? place : std::string_view::npos;
}

std::map<std::string, std::string> with_digest(std::map<std::string, std::string> metadata) {
  metadata[kDigestMember] = kNoDigest;
  return metadata;
}

// The digest of a file from that of its header and those of its tensors that are not empty (empty
// ones have no order).
std::string whole_digest(const DigestValue& header, const std::vector<DigestValue>& tensors) {
  Digest digest;
  digest.update_text(header.hex());
  for (const DigestValue& tensor : tensors) digest.update_text(tensor.hex());
  return digest.finish().hex();
}

// The u64 length, then the JSON, padded with spaces so that the buffer starts at a multiple of 64.
std::string header_text(const nlohmann::ordered_json& header) {
  std::string json = json_text(header);
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
  if (const std::size_t place = digest_place(json); place != std::string::npos) {
    std::string unsigned_json = json;
    unsigned_json.replace(place, kNoDigest.size(), kNoDigest);
    Digest digest;
    digest.update_text(unsigned_json);
    header_digest_ = digest.finish();
  }
  header_ = parse_safetensors_header(json, file_bytes - buffer_offset_, path);
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
}

void SafetensorsReader::check_digest() const {
  const auto stated = header_.metadata.find(kDigestMember);
  if (stated == header_.metadata.end()) {
    throw InputError(path() + " has no digest in its metadata, so its bytes cannot be checked");
  }
  std::vector<std::byte> piece(kMiB);
  std::vector<DigestValue> found;
  for (const SafetensorsTensor& tensor : header_.tensors) {
    if (tensor.bytes() == 0) continue;
    Digest digest;
    for (std::uint64_t at = 0; at < tensor.bytes(); at += piece.size()) {
      const std::size_t bytes = std::min<std::uint64_t>(piece.size(), tensor.bytes() - at);
      read(tensor, at, std::span(piece).first(bytes));
      digest.update(piece.data(), bytes);
    }
    found.push_back(digest.finish());
  }
  if (whole_digest(header_digest_, found) != stated->second) throw offload::IntegrityError(path());
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
  if (!metadata.empty()) {
    nlohmann::ordered_json& notes = header["__metadata__"] = nlohmann::ordered_json::object();
    // The digest is the first member, so that its place is known.
    if (metadata.contains(kDigestMember)) notes[kDigestMember] = metadata.at(kDigestMember);
    for (const auto& [name, text] : metadata) notes[name] = text;
  }
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
                                     const std::map<std::string, std::string>& metadata,
                                     bool has_digest)
    : file_(PosixFile::create(path)),
      specs_(specs),
      layout_(safetensors_layout(specs, has_digest ? with_digest(metadata) : metadata)),
      written_bytes_(specs.size(), 0),
      digests_(has_digest ? specs.size() : 0) {
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
  if (!digests_.empty()) digests_[tensor].update(from.data(), from.size());
  written += from.size();
}

void SafetensorsWriter::finish() {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    SLUICE_CHECK_MSG(written_bytes_[i] == layout_.tensors[i].bytes(),
                     "tensor '" + specs_[i].name + "' is not whole");
  }
  if (!digests_.empty()) {
    const std::string_view json = std::string_view(layout_.header).substr(kLengthBytes);
    Digest header;
    header.update_text(json);
    std::vector<DigestValue> tensors;
    for (std::size_t i = 0; i < digests_.size(); ++i) {
      if (layout_.tensors[i].bytes() > 0) tensors.push_back(digests_[i].finish());
    }
    const std::string digest = whole_digest(header.finish(), tensors);
    file_.write_all(kLengthBytes + digest_place(json), std::as_bytes(std::span(digest)));
  }
  file_.sync();
  finished_ = true;
}

}  // namespace sluice::checkpoint
