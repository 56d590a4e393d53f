// Others' AdamW beside ours: torch's and DeepSpeed's, each in a step at a time, in a process of
// their own (tools/bench/peer_adam.py, which is part of this program and says what each peer does
// and how it is verified before it is timed). One thread.
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
  std::uint64_t bytes_per_param = 0;  // that a step must read and write
};

class AdamPeers {
 public:
  struct Deadlines {
    double start_seconds = 300;  // loading torch from a cold disk, filling the arrays
    double step_seconds = 120;   // and a microsecond more for each element
  };

  // Starts the peers with `python`, an interpreter that has torch, for steps over `elems`
  // elements by `threads` threads. Nothing where no such interpreter exists. Error, one sentence:
  // it ended, answered what is no answer, or speaks another protocol; TimeoutError.
  static std::optional<AdamPeers> open(const std::string& python, int threads, std::int64_t elems);
  static std::optional<AdamPeers> open(const std::string& python, int threads, std::int64_t elems,
                                       const Deadlines& deadlines);

  const std::vector<AdamPeer>& variants() const { return variants_; }
  // "torch 2.15.0, DeepSpeed 0.19.8 (AVX2)".
  const std::string& versions() const { return versions_; }
  // A sentence where some peers are missing, else empty.
  const std::string& missing() const { return missing_; }
  // Bytes of the peers' memory that lie on huge pages.
  std::uint64_t huge_page_bytes() const { return huge_page_bytes_; }

  // One verified step of a variant, over all elements. Error: as open, or its values are not
  // AdamW's.
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

// The interpreter of a virtual environment: DIR/bin/python. InputError where DIR has none.
std::string python_of(const std::string& venv);
// Of the one that tools/bench/peers makes: $XDG_CACHE_HOME/sluice/bench_peers, else
// $HOME/.cache/sluice/bench_peers. Nothing where it is not there, or not finished.
std::optional<std::string> default_peers_python();

}  // namespace sluice::bench
