// The group of one GPU: copies on its stream, and neither NCCL nor the network.
#pragma once

#include <memory>

#include "collectives/communicator.hpp"
#include "device/device.hpp"

namespace sluice::collectives {

std::unique_ptr<Communicator> make_lone_gpu_communicator(device::Stream& stream);

}  // namespace sluice::collectives
