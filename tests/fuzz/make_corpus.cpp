// Writes one directory of valid inputs per fuzz target: `make_corpus DIR`. Fuzzers start from them.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "allocator/record/format/memory_trace_csv.hpp"
#include "allocator/record/format/torch_snapshot.hpp"
#include "allocator/record/memory_action_names.hpp"
#include "engine/checkpoint/manifest.hpp"
#include "engine/config/config.hpp"

namespace {

namespace fs = std::filesystem;
using std::string_literals::operator""s;

void write(const fs::path& path, const std::string& content) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file << content;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.native());
}

std::string llmc_file(std::int32_t magic, std::int32_t version, std::size_t width) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = 32;
  std::string text(1024, '\0');
  std::memcpy(text.data(), header.data(), text.size());
  for (std::uint32_t token = 0; token < 32; ++token) {
    text.append(reinterpret_cast<const char*>(&token), width);
  }
  return text;
}

std::string safetensors_file() {
  const std::string json = R"({"__metadata__":{"format":"pt"},)"
                           R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                           R"("b":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},)"
                           R"("c":{"dtype":"U8","shape":[0,5],"data_offsets":[26,26]}}  )";
  const std::uint64_t length = json.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, text.size());
  return text + json + std::string(26, 'x');
}

std::string manifest_file() {
  sluice::checkpoint::CheckpointManifest manifest;
  manifest.step = 20;
  manifest.data_fingerprint = manifest.weights_hash = std::string(32, '0');
  manifest.arithmetic = "host avx2";
  manifest.threads = 2;
  manifest.settings = {{"model.layers", "2"}};
  manifest.files = {{"weights.safetensors", 1000, std::string(32, 'f')}};
  return sluice::checkpoint::format_manifest_file(manifest);
}

sluice::record::MemorySnapshot snapshot() {
  constexpr std::uint64_t kBase = 0x7f0000000000;
  sluice::record::MemorySnapshot given;
  given.names = {"", "model.py:12 forward"};
  auto& segment = given.segments.emplace_back();
  segment.address = kBase;
  segment.bytes = 2 << 20;
  segment.blocks.push_back({.address = kBase,
                            .bytes = 1024,
                            .requested_bytes = 700,
                            .state = sluice::record::BlockState::kAllocated,
                            .name = 1});
  segment.blocks.push_back({.address = kBase + 1024, .bytes = (2 << 20) - 1024});
  for (std::uint8_t action = 0; action < sluice::record::kMemoryActionNames.size(); ++action) {
    given.events.push_back({.action = static_cast<sluice::record::MemoryAction>(action),
                            .name = 1,
                            .address = kBase + action % 3u * 1024,
                            .bytes = 700});
  }
  return given;
}

std::string snapshot_file() {
  std::string bytes;
  sluice::record::write_torch_snapshot(snapshot(), [&](std::string_view part) { bytes += part; });
  return bytes;
}

std::string trace_csv_file() {
  std::ostringstream out;
  sluice::record::write_memory_trace_csv(snapshot(), out);
  return out.str();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const fs::path root = argv[1];
  const std::string model = "[model]\nlayers = 2\nhidden = 64\nheads = 4\n";
  write(root / "config/small", model);
  write(root / "config/every_key",
        sluice::config::config_to_toml(sluice::config::parse_config(model, "small")));
  write(root / "config/overrides",
        model + "\0memory.device=64MiB\0memory.link_latency=10us\0data.paths=a,b"s);
  // The first byte is fuzz_bin's choice of format and vocabulary.
  write(root / "bin/u16", "\1" + llmc_file(20240520, 1, 2));
  write(root / "bin/u32", "\7" + llmc_file(20240801, 7, 4));
  write(root / "bin/text", "\4It was the best of times, it was the worst of times.");
  write(root / "safetensors/three", safetensors_file());
  write(root / "manifest/one", manifest_file());
  write(root / "manifest/overflow", R"({"step": 2e777777})");
  write(root / "snapshot/written", snapshot_file());
  // Written by pickle.dumps of protocol 0: text opcodes.
  write(
      root / "snapshot/protocol0",
      "(dp0\nVsegments\np1\n(lp2\nsVdevice_traces\np3\n(lp4\n(lp5\n(dp6\nVaction\np7\nValloc\np8\n"
      "sVaddr\np9\nI512\nsVsize\np10\nL7L\nsVtime_us\np11\nI15\nsaas.");
  // The first byte is fuzz_trace_csv's choice of format.
  write(root / "trace_csv/ours", "\0"s + trace_csv_file());
  write(root / "trace_csv/rmm",
        "\1Thread,Time,Action,Pointer,Size,Stream\n1,0:0:0:0,allocate,0x200,7,0\n"
        "1,0:0:0:0,free,0x200,7,0\n1,0:0:0:0,allocate failure,(nil),7,0\n");
  return 0;
}
