#include "offload/request_queue.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "offload/queued_engine.hpp"

namespace sluice::testing {
namespace {

offload::ActiveRequestPtr made(offload::StorageOp op, std::uint64_t needed_by,
                               std::uint64_t sequence) {
  offload::StorageRequest request;
  request.op = op;
  request.needed_by = needed_by;
  return std::make_shared<offload::ActiveRequest>(
      offload::ActiveRequest{request, nullptr, nullptr, offload::PieceCursor(request, {}, 4096), 0,
                             0, false, nullptr, sequence});
}

// A request of one piece: it starts and is gone.
offload::ActiveRequestPtr take(offload::RequestQueue& queue, bool reads = true,
                               bool writes = true) {
  const offload::ActiveRequestPtr next = queue.next(reads, writes);
  if (next) {
    queue.count_start(next);
    queue.erase(next);
  }
  return next;
}

TEST(RequestQueue, TheMostUrgentGoesFirstAndOfThoseTheOldest) {
  offload::RequestQueue queue;
  std::mt19937_64 random(7);
  std::vector<offload::ActiveRequestPtr> all;
  for (std::uint64_t i = 0; i < 60; ++i) {
    all.push_back(made(i % 2 == 0 ? offload::StorageOp::kRead : offload::StorageOp::kWrite,
                       random() % 10, i));
    queue.push(all.back());
  }
  std::sort(all.begin(), all.end(),
            [](const offload::ActiveRequestPtr& a, const offload::ActiveRequestPtr& b) {
              return std::pair(a->request.needed_by, a->sequence) <
                     std::pair(b->request.needed_by, b->sequence);
            });
  for (const offload::ActiveRequestPtr& expected : all) EXPECT_EQ(take(queue), expected);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(take(queue), nullptr);
}

TEST(RequestQueue, ADirectionThatMayNotStartIsLeftOut) {
  offload::RequestQueue queue;
  const auto read = made(offload::StorageOp::kRead, 9, 0);
  const auto write = made(offload::StorageOp::kWrite, 1, 1);
  queue.push(read);
  queue.push(write);
  EXPECT_EQ(queue.next(true, false), read);
  EXPECT_EQ(queue.next(false, true), write);
  EXPECT_EQ(queue.next(true, true), write);
  EXPECT_EQ(queue.next(false, false), nullptr);
  queue.erase(write);
  queue.erase(write);  // is gone already
  EXPECT_EQ(queue.next(false, true), nullptr);
}

TEST(RequestQueue, TheOldestIsOvertakenABoundedNumberOfTimes) {
  offload::RequestQueue queue;
  const auto patient = made(offload::StorageOp::kRead, 1000, 0);
  queue.push(patient);
  for (std::uint64_t i = 1; i <= 2 * offload::RequestQueue::kMostOvertakes; ++i) {
    queue.push(made(offload::StorageOp::kRead, 1, i));
  }
  std::uint32_t before = 0;
  while (take(queue) != patient) ++before;
  EXPECT_EQ(before, offload::RequestQueue::kMostOvertakes);
}

// A large request is cut in many pieces: it stands in the queue while they start.
TEST(RequestQueue, PiecesOfOneRequestCountAsOvertakingToo) {
  offload::RequestQueue queue;
  const auto patient = made(offload::StorageOp::kWrite, 2, 0);
  const auto large = made(offload::StorageOp::kWrite, 1, 1);
  queue.push(patient);
  queue.push(large);
  std::uint32_t before = 0;
  while (queue.next(true, true) != patient) {
    queue.count_start(large);
    ++before;
  }
  EXPECT_EQ(before, offload::RequestQueue::kMostOvertakes);
  queue.erase(patient);
  EXPECT_EQ(queue.next(true, true), large);
}

// On an engine with threads for both (posix), a steady stream of reads would keep writes out.
TEST(RequestQueue, ADirectionIsPassedOverABoundedNumberOfTimes) {
  for (const offload::StorageOp patient_op :
       {offload::StorageOp::kRead, offload::StorageOp::kWrite}) {
    const offload::StorageOp other = patient_op == offload::StorageOp::kRead
                                         ? offload::StorageOp::kWrite
                                         : offload::StorageOp::kRead;
    offload::RequestQueue queue;
    const auto patient = made(patient_op, 1000, 0);
    queue.push(patient);
    std::uint32_t before = 0;
    for (std::uint64_t i = 1;; ++i) {
      queue.push(made(other, 1, i));
      if (take(queue) == patient) break;
      ASSERT_LE(++before, offload::RequestQueue::kMostOvertakes);
    }
    EXPECT_EQ(before, offload::RequestQueue::kMostOvertakes);
    // From then on it counts anew, and a direction in which nothing waits counts nothing.
    EXPECT_EQ(queue.next(true, true)->request.op, other);
  }
}

// A request that may not start (its slots are taken) does not keep the other direction back.
TEST(RequestQueue, ADirectionThatMayNotStartDelaysNoOther) {
  offload::RequestQueue queue;
  queue.push(made(offload::StorageOp::kWrite, 1000, 0));
  for (std::uint64_t i = 1; i <= 2 * offload::RequestQueue::kMostOvertakes; ++i) {
    queue.push(made(offload::StorageOp::kRead, 1, i));
    ASSERT_EQ(take(queue, true, false)->request.op, offload::StorageOp::kRead);
  }
}

// Against a list that is searched from its begin to its end each time.
TEST(RequestQueue, RandomSequencesAgreeWithAList) {
  std::mt19937_64 random(11);
  offload::RequestQueue queue;
  std::vector<offload::ActiveRequestPtr> model;
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const auto op = random() % 2 == 0 ? offload::StorageOp::kRead : offload::StorageOp::kWrite;
    if (random() % 2 == 0 || model.empty()) {
      model.push_back(made(op, random() % 50, i));
      queue.push(model.back());
    } else {
      // Requests are erased in any order, as failures are; nothing starts, so only urgency decides.
      const auto victim = model.begin() + static_cast<std::ptrdiff_t>(random() % model.size());
      queue.erase(*victim);
      queue.erase(*victim);
      model.erase(victim);
    }
    const auto first = std::min_element(
        model.begin(), model.end(),
        [](const offload::ActiveRequestPtr& a, const offload::ActiveRequestPtr& b) {
          return std::pair(a->request.needed_by, a->sequence) <
                 std::pair(b->request.needed_by, b->sequence);
        });
    ASSERT_EQ(queue.next(true, true), first == model.end() ? nullptr : *first);
    ASSERT_EQ(queue.empty(), model.empty());
  }
}

}  // namespace
}  // namespace sluice::testing
