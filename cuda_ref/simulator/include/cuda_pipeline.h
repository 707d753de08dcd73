#pragma once
#include "simulator.hpp"
