// The peers of `sluice bench adam`: AdamW of torch and of DeepSpeed. They run in a process of their
// own, one step at a time. Its program, tools/bench/peer_adam.py, is part of this binary; it
// describes each peer and verifies a peer's values before it times it. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/peer_process.hpp"

namespace sluice::bench {

struct AdamPeer {
  std::string name;                   // "deepspeed_copy"
  std::string job;                    // in words
  std::uint64_t bytes_per_param = 0;  // bytes that a step must read and write
};

class AdamPeers {
 public:
  struct Deadlines {
    double start_seconds = 300;  // loading torch from a cold disk, filling the arrays
    double step_seconds = 120;   // and a microsecond more for each element
  };

  // Starts the peers with `python`, an interpreter that has torch, for steps over `elems`
  // elements by `threads` threads. Returns nothing if no such interpreter exists. Throws Error if
  // the process ended, gave an invalid answer or speaks another protocol; or TimeoutError.
  static std::optional<AdamPeers> open(const std::string& python, int threads, std::int64_t elems);
  static std::optional<AdamPeers> open(const std::string& python, int threads, std::int64_t elems,
                                       const Deadlines& deadlines);

  const std::vector<AdamPeer>& variants() const { return variants_; }
  // "torch 2.15.0, DeepSpeed 0.19.8 (AVX2)".
  const std::string& versions() const { return versions_; }
  // A sentence if some peers are missing, else empty.
  const std::string& missing() const { return missing_; }
  // Bytes of the peers' memory that lie on huge pages.
  std::uint64_t huge_page_bytes() const { return huge_page_bytes_; }

  // Seconds of one verified step of a variant, over all elements. Throws as open() does, and Error
  // if the values are not those of AdamW.
  double seconds(const std::string& variant);

 private:
  AdamPeers(PeerProcess process, std::int64_t elems, const Deadlines& deadlines);
  void read_introduction(const std::string& line, int threads);

  PeerProcess process_;
  double step_deadline_seconds_ = 0;
  std::vector<AdamPeer> variants_;
  std::string versions_;
  std::string missing_;
  std::uint64_t huge_page_bytes_ = 0;
};

// The interpreter of a virtual environment: DIR/bin/python. Throws InputError if DIR has none.
std::string python_of(const std::string& venv);
// The interpreter of the environment that tools/bench/peers makes, in
// $XDG_CACHE_HOME/sluice/bench_peers, else $HOME/.cache/sluice/bench_peers. Returns nothing if the
// environment is missing or unfinished.
std::optional<std::string> default_peers_python();

}  // namespace sluice::bench
