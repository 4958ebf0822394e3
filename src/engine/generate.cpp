#include "model/batch.h"
