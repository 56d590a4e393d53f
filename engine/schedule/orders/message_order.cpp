// The one order of all messages is that of the times at which they are made, each pass taking one
// unit of time.
//
// It fits every list. A rank that consumes one message after it has made another is no problem: if
// a send comes before a receive in the one order, then its value is made no later than that of the
// receive, hence before the pass that consumes the latter begins. So the send's pass stands in
// front of the receive's pass, and there is a place between them.
//
// It cannot deadlock. Take the first message in the one order that is not delivered. All that
// stands in front of it, in the list of either end, are passes and earlier messages, which are
// done. So both ends get to it.
#include "engine/schedule/orders/message_order.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "engine/schedule/orders/order_times.hpp"

namespace sluice::schedule {
namespace {

struct Message {
  std::int64_t made_at = 0;
  StageAction send;
  StageAction receive;
  std::size_t after = 0;  // the number of its pass in the sender's list, plus one
};

// The passes of each rank alone.
PipelineOrder passes_of(PipelineOrder order) {
  for (std::vector<StageAction>& list : order.actions) {
    std::erase_if(list, [](const StageAction& action) { return !is_pass(action.kind); });
  }
  return order;
}

std::vector<Message> messages_in_order(const PipelineOrder& passes) {
  const OrderTimes times = time_order(passes, {});
  std::vector<Message> messages;
  for (std::size_t rank = 0; rank < passes.actions.size(); ++rank) {
    for (std::size_t i = 0; i < passes.actions[rank].size(); ++i) {
      const StageAction& pass = passes.actions[rank][i];
      if (pass.kind == ActionKind::kBackwardWeight) continue;
      const bool forward = pass.kind == ActionKind::kForward;
      const std::int32_t to = forward ? pass.stage + 1 : pass.stage - 1;
      if (to < 0 || to == passes.stages() || passes.rank_of(to) == passes.rank_of(pass.stage)) {
        continue;
      }
      messages.push_back({times.spans[rank][i].end,
                          {forward ? ActionKind::kSendForward : ActionKind::kSendBackward,
                           pass.stage, pass.microbatch},
                          {forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward, to,
                           pass.microbatch},
                          i + 1});
    }
  }
  std::sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tuple(a.made_at, a.send) < std::tuple(b.made_at, b.send);
  });
  return messages;
}

// The number of the pass that consumes a value, in its rank's list, by stage and micro-batch.
struct Consumers {
  std::vector<std::size_t> forward;
  std::vector<std::size_t> backward;
};

std::size_t index_of(const PipelineOrder& order, const StageAction& action) {
  return static_cast<std::size_t>(action.stage) * static_cast<std::size_t>(order.microbatches) +
         static_cast<std::size_t>(action.microbatch);
}

Consumers find_consumers(const PipelineOrder& passes) {
  const std::size_t count =
      passes.rank_of_stage.size() * static_cast<std::size_t>(passes.microbatches);
  Consumers found{std::vector<std::size_t>(count), std::vector<std::size_t>(count)};
  for (const std::vector<StageAction>& list : passes.actions) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].kind == ActionKind::kBackwardWeight) continue;
      const bool forward = list[i].kind == ActionKind::kForward;
      (forward ? found.forward : found.backward)[index_of(passes, list[i])] = i;
    }
  }
  return found;
}

}  // namespace

std::vector<std::vector<PlacedMessage>> place_messages(const PipelineOrder& order) {
  const PipelineOrder passes = passes_of(order);
  const Consumers consumers = find_consumers(passes);
  std::vector<std::vector<PlacedMessage>> placed(passes.actions.size());
  const auto list_of = [&](std::int32_t rank) -> std::vector<PlacedMessage>& {
    return placed[static_cast<std::size_t>(rank)];
  };
  for (const Message& message : messages_in_order(passes)) {
    const std::int32_t from = passes.rank_of(message.send.stage);
    const std::int32_t to = passes.rank_of(message.receive.stage);
    list_of(from).push_back({message.send, to, message.after});
    const bool forward = message.receive.kind == ActionKind::kReceiveForward;
    const std::vector<std::size_t>& uses = forward ? consumers.forward : consumers.backward;
    list_of(to).push_back({message.receive, from, uses[index_of(passes, message.receive)]});
  }
  // A send stands as early and a receive as late as the messages around them allow.
  for (std::vector<PlacedMessage>& list : placed) {
    std::size_t earliest = 0;
    for (PlacedMessage& message : list) {
      if (!sends_message(message.action.kind)) continue;
      earliest = message.before = std::max(earliest, message.before);
    }
    std::size_t latest = SIZE_MAX;
    for (auto message = list.rbegin(); message != list.rend(); ++message) {
      latest = message->before = std::min(latest, message->before);
    }
  }
  return placed;
}

PipelineOrder list_messages(const PipelineOrder& order) {
  const std::vector<std::vector<PlacedMessage>> messages = place_messages(order);
  PipelineOrder listed = passes_of(order);
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    const std::vector<StageAction> passes = std::move(listed.actions[rank]);
    std::vector<StageAction> list;
    auto next = messages[rank].begin();
    for (std::size_t i = 0; i <= passes.size(); ++i) {
      for (; next != messages[rank].end() && next->before == i; ++next)
        list.push_back(next->action);
      if (i < passes.size()) list.push_back(passes[i]);
    }
    listed.actions[rank] = std::move(list);
  }
  return listed;
}

}  // namespace sluice::schedule
